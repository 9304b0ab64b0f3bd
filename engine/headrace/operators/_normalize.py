"""Whole updates of a stream of upserts, and retractions that match nothing.

Whole updates of a stream of upserts: each change with the old row of its key (Flink: `ChangelogNormalize`).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from headrace.api.column_reads import TIME, ColumnReads, Kind, fields_read
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import OperatorFunction
from headrace.api.records import RowKind, Struct
from headrace.api.states import ValueState
from headrace.api.ttl import StateTtl
from headrace.operators._event_time import freed_by
from headrace.operators._value_types import are_identical

OF_KEY: Final = "records of its key"
IN_WINDOW: Final = "records of its key in its window"


def unmatched(kind: RowKind, records: str, ttl: StateTtl | None = None) -> str:
    """Return the reason for a retraction that matches none of the `records`, which a TTL may have removed."""
    expired = "" if ttl is None else f" (a record is forgotten after state_ttl={ttl.ttl})"
    return f"a retraction ({kind.symbol}) that matches none of the {records}{expired}"


In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class LastRow(Struct, frozen=True):
    """Stored last row of a key, and the event time with which it was emitted (ms)."""

    at: int
    record: Any


class NormalizeFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """Emits the change of each key's row, from the last row to the new one; nothing for an equal row."""

    KIND = "normalize"
    TAKER = "normalize"
    takes_upserts = (0,)
    needs_keys_of_deletions = True
    has_row_of_each_key = True
    retracts = True

    last: ValueState[Any]

    def __init__(self, last: Any, ttl: StateTtl | None, *, drops_unmatched: bool) -> None:
        """Take the type of the state, its TTL, and whether retractions of keys without a row are dropped."""
        self._last = last
        self._ttl = ttl
        self._drops_unmatched = drops_unmatched

    def column_reads(self) -> ColumnReads:
        """Return what the rows read: the last record of each key. Equal ones emit nothing, so their times depend on all columns."""
        return self.reads_as_taken(fields_read([TIME], Kind.SORT)).of_changes()

    async def process(self, record: In, ctx: Context, /) -> None:
        """Replace the row of the key, or delete it. A retraction of a key without a row is dropped, or goes to the quarantine."""
        last = await self.last.value()
        if ctx.row_kind.is_retraction:
            await self._delete(last, ctx)
        elif last is None:
            await self.last.update(self._last(at=ctx.timestamp, record=record))
            ctx.collect(record)
        elif not are_identical(last.record, record):
            await self.last.update(self._last(at=ctx.timestamp, record=record))
            ctx.collect(last.record, RowKind.UPDATE_BEFORE, timestamp=last.at)
            ctx.collect(record, RowKind.UPDATE_AFTER)
        elif self._ttl is not None:
            await self.last.update(last)  # an equal row renews the lifetime

    async def _delete(self, last: Any, ctx: Context) -> None:
        """Emit the whole last row as deleted: the retraction may hold the key alone."""
        if last is None:
            if not self._drops_unmatched:
                ctx.quarantine(unmatched(ctx.row_kind, OF_KEY, self._ttl))
            return
        await self.last.clear()
        ctx.collect(last.record, RowKind.DELETE, timestamp=last.at)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {
            "emits": "-U with the last row before each +U, and -D with the last row",
            "state_kept": "a row for each key",
            "state_freed": f"when the key is deleted, else {freed_by(self._ttl)}",
        }


def normalize(takes: type[In], *, ttl: StateTtl | None, drops_unmatched: bool = False) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.normalize`."""
    last_type: Any = msgspec.defstruct(
        f"Last{takes.__name__}", [("at", int), ("record", takes)], bases=(LastRow,), frozen=True
    )

    class Normalize(NormalizeFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        last = ValueState("last_row", last_type, ttl=ttl)

    return Normalize(last_type, ttl, drops_unmatched=drops_unmatched)
