"""Changelog modes: what the changes of a stream mean (Flink: `ChangelogMode`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal


@dataclass(frozen=True, slots=True)
class ChangelogMode:
    """Row kinds of a stream, and what they change: the argument `emits` of `process`.

    `ChangelogMode.INSERT`: each row is new (`+I`). `ChangelogMode.RETRACT`: an update comes as `-U` with the whole old
    row and `+U` with the new one, a deletion as `-D` with the whole old row. `ChangelogMode.upsert("id")`: `+I` and `+U`
    set the row of an `id`, `-D` deletes it, whatever its other fields; there is no `-U`.
    """

    kind: Literal["insert", "upsert", "retract"]
    key: tuple[str, ...] = ()
    """Fields of the key that upserts change; empty for other modes."""

    INSERT: ClassVar[ChangelogMode]
    RETRACT: ClassVar[ChangelogMode]

    @classmethod
    def upsert(cls, key: str, /, *more: str) -> ChangelogMode:
        """Return the mode of a stream that changes the rows of a key: one field, or several."""
        return cls("upsert", (key, *more))

    @property
    def is_insert(self) -> bool:
        """Return whether no row is ever updated or deleted."""
        return self.kind == "insert"

    @property
    def is_upsert(self) -> bool:
        """Return whether updates come without their old rows."""
        return self.kind == "upsert"

    @property
    def is_retract(self) -> bool:
        """Return whether updates and deletions come with their old rows."""
        return self.kind == "retract"

    @property
    def declaration(self) -> str:
        """Return the mode as code declares it: `ChangelogMode.INSERT`, `ChangelogMode.upsert("id")`."""
        if self.is_upsert:
            names = ", ".join(f'"{name}"' for name in self.key)
            return f"ChangelogMode.upsert({names})"
        return f"ChangelogMode.{self.kind.upper()}"

    def __str__(self) -> str:
        """Return the mode as `explain` shows it: `insert`, `retract`, `upsert(id)`."""
        return f"{self.kind}({', '.join(self.key) or 'unknown key'})" if self.is_upsert else self.kind


DEBEZIUM: Final[Mapping[str, str]] = {"field": "__op", "c": "+I", "r": "+I", "u": "+U", "d": "-D"}
"""Row kinds of the events of Debezium, for `row_kind` of a source with `envelope: debezium`: `r` is a row of a snapshot."""

MAXWELL: Final[Mapping[str, str]] = {
    "field": "__type",
    "insert": "+I",
    "bootstrap-insert": "+I",
    "update": "+U",
    "delete": "-D",
}
"""Row kinds of the events of Maxwell, for `row_kind` of a source with `envelope: maxwell`."""

COMPACTED: Final[Mapping[str, str]] = {"field": "__op", "u": "+U", "d": "-D"}
"""Row kinds of a compacted topic, for `row_kind` of a source with `on_tombstone: delete`: a message is the last row of its key, a tombstone deletes it."""

ChangelogMode.INSERT = ChangelogMode("insert")
ChangelogMode.RETRACT = ChangelogMode("retract")
UPSERTS_OF_UNKNOWN_KEY = ChangelogMode("upsert")
"""Mode of a function whose updates come without their old rows, and whose key nothing declares."""


@dataclass(frozen=True, slots=True)
class StreamChanges:
    """Changes of one stream, as the graph knows them."""

    mode: ChangelogMode
    is_known: bool = True
    """False: nothing declares the mode. It is taken as retract; operators that take inserts alone refuse a retraction in the run."""
    unique: tuple[tuple[str, ...], ...] = ()
    """Unique keys: no two rows of the table that the changes describe agree in all fields of one."""
    reordered_by: str | None = None
    """Operator that may emit the changes of a row's key in another order than it gets them."""
    ordered_within: tuple[str, ...] | None = None
    """Fields within which that operator keeps the order; None: within none."""
    may_lack_updates: bool = False
    """True: a step may have dropped the `+U` behind a `-U`."""
    dated_back_by: str | None = None
    """Operator whose `-D` has the event time of the row that it takes back, so that nothing says when the row was deleted."""

    @property
    def may_retract(self) -> bool:
        """Return whether the stream may have other rows than inserts, as far as the graph knows."""
        return self.is_known and not self.mode.is_insert

    def keeps_order_of(self, key: tuple[str, ...]) -> bool:
        """Return whether the changes that agree in the fields `key` come in order."""
        if self.reordered_by is None:
            return True
        return self.ordered_within is not None and {*self.ordered_within} <= {*key}

    def __str__(self) -> str:
        """Return the changes as `explain` shows them."""
        parts = [str(self.mode) if self.is_known else f"{self.mode}, assumed: it declares no emits="]
        parts += [f"unique by {', '.join(key)}" for key in self.unique if key != self.mode.key]
        if self.reordered_by is not None:
            parts.append(f"'{self.reordered_by}' may change their order")
        return "; ".join(parts)


INSERTS = StreamChanges(ChangelogMode.INSERT)
