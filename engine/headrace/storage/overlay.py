"""Overlay: a table of a branch builds on a version of another table, its base, and stores only the branch's own rows.

The description in the table's metadata names the base. Readers see both as one table:

    state tables and append sinks    the rows of the base, and its own
    merge sinks                      its own rows, and those of the base whose primary key it has not written

A merge sink's own table has one more column, `_deleted`: it is true if the branch has deleted the row's key.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.predicate import Conditions
from headrace.storage.refusals import doing
from headrace.storage.table import ROW_KIND, Commit, Snapshot, TableForm

DELETED: Final = "_deleted"
"""Column in a merge sink of a branch: true in rows that mark a deleted key."""

_ROW: Final = "_row"
_PARENT: Final = "../"


class Base(msgspec.Struct, frozen=True):
    """Base of a table: its URI, or its path relative to the folder of the table on it, and its version."""

    path: str
    version: int
    key: tuple[str, ...] = ()
    """Primary key of a merge sink; empty for a table that rows are only added to."""

    def uri(self, table: str) -> str:
        """Return the URI of the base of `table`, itself a URI."""
        return resolved(f"{table}/{self.path}") if self.path.startswith(_PARENT) else self.path

    def described(self) -> str:
        """Return the description of a table on this base."""
        return msgspec.json.encode({"headrace_base": self}).decode()


class _Description(msgspec.Struct):
    headrace_base: Base


def base_of(description: str | None) -> Base | None:
    """Return the base that a table's description names; None for a table without a base."""
    if not description or "headrace_base" not in description:
        return None
    return msgspec.json.decode(description, type=_Description).headrace_base


def is_elsewhere(file: str) -> bool:
    """Return whether a file, as `Snapshot.files` names it, belongs to the table's base: it is in another folder."""
    return file.startswith((_PARENT, "/")) or "://" in file


def resolved(path: str) -> str:
    """Return a path or URI without `..`, which object stores do not know."""
    if _PARENT not in path:
        return path
    scheme, separator, rest = path.rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(rest)}"


class OverlaySnapshot:
    """`Snapshot` of a table and its base. Opens the base when a caller asks for its rows or files."""

    def __init__(self, own: Snapshot, base: Base, open_base: Callable[[], Snapshot]) -> None:
        """Store the snapshot of the table itself; read nothing yet."""
        self.own = own
        """Snapshot of the table without its base."""
        self._named = base
        self._open_base = open_base
        self._base: Snapshot | None = None

    @property
    def base(self) -> Snapshot:
        """Return the base at its version. Raises `StoreError` when its log no longer has the version."""
        if self._base is None:  # no `cached_property`: before Python 3.12 all bases would be opened one after the other
            self._base = self._open_base()
        return self._base

    @property
    def uri(self) -> str:
        """Return the URI of the table; see `Snapshot.uri`."""
        return self.own.uri

    @property
    def version(self) -> int:
        """Return the version of the table itself; see `Snapshot.version`."""
        return self.own.version

    @property
    def table_id(self) -> str:
        """Return the id of the table itself; see `Snapshot.table_id`."""
        return self.own.table_id

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of its rows; see `Snapshot.schema`."""
        return pa.schema([column for column in self.own.schema if column.name != DELETED])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Return the partition columns of the table itself; see `Snapshot.partition_columns`."""
        return self.own.partition_columns

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules of the table itself; see `Snapshot.rules`."""
        return self.own.rules

    @property
    def form(self) -> TableForm:
        """Return the form of the table itself; see `Snapshot.form`."""
        return self.own.form

    @property
    def keeps_deleted(self) -> bool:
        """Return whether deletions must stay as rows, because the base still has the key."""
        return bool(self._named.key)

    def files(self) -> set[str]:
        """Return the data files of table and base; those of the base have paths outside of the table's folder."""
        return {*self.own.files(), *(self._in_base(file) for file in self.base.files())}

    def add_actions(self) -> pa.Table:
        """Return the data files of table and base with their statistics; see `Snapshot.add_actions`."""
        of_base = self.base.add_actions()
        paths = pa.array([self._in_base(file) for file in of_base["path"].to_pylist()], pa.string())
        of_base = of_base.set_column(of_base.schema.get_field_index("path"), "path", paths)
        own = self.own.add_actions()
        own = own.set_column(own.schema.get_field_index("path"), "path", own["path"].cast(pa.string()))
        return pa.concat_tables(
            [table for table in (of_base, own) if len(table)] or [own], promote_options="permissive"
        )

    def read(self, schema: pa.Schema, *, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> pa.Table:
        """Return the rows of table and base that meet the conditions; see `Snapshot.read`."""
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        if not self._named.key:
            parts = [table.read(wanted, conditions=conditions) for table in (self._opened_base(), self.own)]
            return pa.concat_tables(parts)
        keys = pa.schema([self.own.schema.field(name) for name in self._named.key])
        extra = [column for column in keys if column.name not in wanted.names]
        # A row of the branch hides the base's row with the same key even if it does not meet the conditions.
        written = self.own.read(keys)
        below = without(self._opened_base().read(pa.schema([*wanted, *extra]), conditions=conditions), written)
        own = self.own.read(pa.schema([*wanted, pa.field(DELETED, pa.bool_())]), conditions=conditions)
        live = own.filter(pc.invert(pc.fill_null(own[DELETED], fill_value=False)))
        return pa.concat_tables([below.select(wanted.names), live.select(wanted.names)])

    def stream(self, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> Any:
        """Return the rows of table and base as an Arrow stream; see `Snapshot.stream`.

        Reads all rows into memory: Arrow's threads would call a stream made in Python, which can abort the process.
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
        with doing(f"to read the table that {self.uri} builds on"):
            return self.base

    def _in_base(self, file: str) -> str:
        return f"{self._named.path}/{file}"


def own_rows(snapshot: Snapshot) -> Snapshot:
    """Return a table without its base."""
    return snapshot.own if isinstance(snapshot, OverlaySnapshot) else snapshot


def changes_of_branch(table: Snapshot, changes: pa.Table) -> pa.Table:
    """Return changes as they are merged into a table: if the base still has a deleted key, the deletion becomes a marked row."""
    if not isinstance(table, OverlaySnapshot) or not table.keeps_deleted:
        return changes
    is_deleted = pc.equal(changes[ROW_KIND], "-D")
    kinds = pa.repeat(pa.scalar("+U", changes.schema.field(ROW_KIND).type), len(changes))
    changes = changes.set_column(changes.schema.get_field_index(ROW_KIND), ROW_KIND, kinds)
    return changes.append_column(DELETED, is_deleted)


def without(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows whose key is not among `keys`. As in a merge, a null equals nothing."""
    numbered = rows.select(keys.schema.names).append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    kept = numbered.join(keys, keys=list(keys.schema.names), join_type="left anti")[_ROW]
    return rows.take(kept.take(pc.sort_indices(kept)))
