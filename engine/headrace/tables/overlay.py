"""Tables of a branch: each builds on a version of another table, its base, and holds only what the branch itself has written.

The description in the table's metadata names the base. Who opens the table sees both as one:

    state tables and append sinks    the rows of the base, and its own
    merge sinks                      its own rows, and those of the base whose primary key it has not written

A merge sink's own table has a column more, `_deleted`: such a row says that the branch has deleted the key.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.plan.columns import ROW_KIND
from headrace.tables.predicate import Conditions
from headrace.tables.store import Commit, Snapshot, storage_errors

DELETED: Final = "_deleted"
"""In a merge sink of a branch: the column that is true of rows which the branch has deleted."""

_ROW: Final = "_row"
_PARENT: Final = "../"


class Base(msgspec.Struct, frozen=True):
    """The table that another one builds on: its URI, or its path relative to the other one's folder, and its version."""

    path: str
    version: int
    key: tuple[str, ...] = ()
    """The primary key of a merge sink. Empty where rows are only added."""

    def uri(self, table: str) -> str:
        """Return where the base of the table at a URI is."""
        return resolved(f"{table}/{self.path}") if self.path.startswith(_PARENT) else self.path

    def described(self) -> str:
        """Return the description of a table that builds on it."""
        return msgspec.json.encode({"headrace_base": self}).decode()


class _Description(msgspec.Struct):
    headrace_base: Base


def base_of(description: str | None) -> Base | None:
    """Return the base that a table's description names; None for a table of its own."""
    if not description or "headrace_base" not in description:
        return None
    return msgspec.json.decode(description, type=_Description).headrace_base


def is_elsewhere(file: str) -> bool:
    """Tell whether a file of a table, as `Snapshot.files` names it, is one of its base: it is in another folder."""
    return file.startswith((_PARENT, "/")) or "://" in file


def resolved(path: str) -> str:
    """Return a path or URI without steps to parent folders: object stores have none."""
    if _PARENT not in path:
        return path
    scheme, separator, rest = path.rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(rest)}"


class OverlaySnapshot:
    """A `Snapshot` of a table and its base. The base is opened when its rows or files are asked for."""

    def __init__(self, own: Snapshot, base: Base, open_base: Callable[[], Snapshot]) -> None:
        """Nothing is read yet."""
        self.own = own
        """The table without its base."""
        self._named = base
        self._open_base = open_base
        self._base: Snapshot | None = None

    @property
    def base(self) -> Snapshot:
        """The base at its version. Raises `StoreError` where its log does not have the version any more."""
        if self._base is None:  # no `cached_property`: before Python 3.12 all bases would be opened one after the other
            self._base = self._open_base()
        return self._base

    @property
    def uri(self) -> str:
        """Return where the table is; see `Snapshot.uri`."""
        return self.own.uri

    @property
    def version(self) -> int:
        """Return the version of the table itself; see `Snapshot.version`."""
        return self.own.version

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of its rows; see `Snapshot.schema`."""
        return pa.schema([column for column in self.own.schema if column.name != DELETED])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Return the partition columns of the table itself; see `Snapshot.partition_columns`."""
        return self.own.partition_columns

    @property
    def keeps_deleted(self) -> bool:
        """Tell whether a key that is deleted stays, as a row that says so: the base still has it."""
        return bool(self._named.key)

    def files(self) -> set[str]:
        """Return the data files of both; those of a base as `is_elsewhere` says."""
        return {*self.own.files(), *(self._in_base(file) for file in self.base.files())}

    def add_actions(self) -> pa.Table:
        """Return the data files of both with their statistics; see `Snapshot.add_actions`."""
        of_base = self.base.add_actions()
        paths = pa.array([self._in_base(file) for file in of_base["path"].to_pylist()], pa.string())
        of_base = of_base.set_column(of_base.schema.get_field_index("path"), "path", paths)
        own = self.own.add_actions()
        own = own.set_column(own.schema.get_field_index("path"), "path", own["path"].cast(pa.string()))
        return pa.concat_tables(
            [table for table in (of_base, own) if len(table)] or [own], promote_options="permissive"
        )

    def read(self, schema: pa.Schema, *, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> pa.Table:
        """Return the rows of both that meet the conditions; see `Snapshot.read`."""
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        if not self._named.key:
            parts = [table.read(wanted, conditions=conditions) for table in (self._opened_base(), self.own)]
            return pa.concat_tables(parts)
        keys = pa.schema([self.own.schema.field(name) for name in self._named.key])
        extra = [column for column in keys if column.name not in wanted.names]
        # Whatever the conditions are, a row that the branch has written hides that of the base.
        written = self.own.read(keys)
        below = without(self._opened_base().read(pa.schema([*wanted, *extra]), conditions=conditions), written)
        own = self.own.read(pa.schema([*wanted, pa.field(DELETED, pa.bool_())]), conditions=conditions)
        live = own.filter(pc.invert(pc.fill_null(own[DELETED], fill_value=False)))
        return pa.concat_tables([below.select(wanted.names), live.select(wanted.names)])

    def stream(self, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> Any:
        """Return the rows of both as an Arrow stream; see `Snapshot.stream`.

        They are read into memory: a stream made in Python would be called from Arrow's threads, which can abort the process.
        """
        schema = self.schema
        wanted = pa.schema([schema.field(name) for name in columns]) if columns else schema
        return self.read(wanted, conditions=conditions).to_reader()

    def transaction(self, app_id: str) -> int | None:
        """Return the last transaction of an application in the table itself; see `Snapshot.transaction`."""
        return self.own.transaction(app_id)

    def history(self, limit: int | None = None) -> list[Commit]:
        """Return the commits of the table itself; see `Snapshot.history`."""
        return self.own.history(limit)

    def _opened_base(self) -> Snapshot:
        """Return the base. Raises `StorageError` where the storage refuses to open it."""
        with storage_errors(f"to read the table that {self.uri} builds on"):
            return self.base

    def _in_base(self, file: str) -> str:
        return f"{self._named.path}/{file}"


def own_rows(snapshot: Snapshot) -> Snapshot:
    """Return a table without its base."""
    return snapshot.own if isinstance(snapshot, OverlaySnapshot) else snapshot


def changes_of_branch(table: Snapshot, changes: pa.Table) -> pa.Table:
    """Return changes as they are merged into a table: a deletion becomes a row that says so where the base still has the key."""
    if not isinstance(table, OverlaySnapshot) or not table.keeps_deleted:
        return changes
    is_deleted = pc.equal(changes[ROW_KIND], "-D")
    kinds = pa.repeat(pa.scalar("+U", changes.schema.field(ROW_KIND).type), len(changes))
    changes = changes.set_column(changes.schema.get_field_index(ROW_KIND), ROW_KIND, kinds)
    return changes.append_column(DELETED, is_deleted)


def without(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows whose key is not among `keys`. A null is equal to nothing, as in a merge."""
    numbered = rows.select(keys.schema.names).append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    kept = numbered.join(keys, keys=list(keys.schema.names), join_type="left anti")[_ROW]
    return rows.take(kept.take(pc.sort_indices(kept)))
