"""Changes between full extracts of a table: each row is an update, and a key that an extract lacks is a deletion."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from headrace.api.column_reads import TIME, ColumnReads, Kind, copied, fields_read
from headrace.api.functions import (
    BroadcastContext,
    Context,
    KeyedBroadcastFunction,
    KeyedProcessFunction,
    function_types,
)
from headrace.api.records import RowKind, Struct
from headrace.api.states import BroadcastState, MapState, ValueState
from headrace.api.ttl import milliseconds_of
from headrace.operators._event_time import LAST_TIME
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType, value_type

In = TypeVar("In", bound=Struct)
Announced = TypeVar("Announced", bound=Struct)
Out = TypeVar("Out", bound=Struct)

_text = sort_text("time of a snapshot", ValueType(int, may_be_none=False), descending=False)


class Snapshot(Struct, frozen=True):
    """Time of an extract that has rows (ms)."""

    at: int


class AnnouncedSnapshots(KeyedProcessFunction[In, Out]):
    """Emits each snapshot at its first row. The key is the snapshot's time."""

    known: ValueState[bool] = ValueState("known", bool)

    def column_reads(self) -> ColumnReads:
        """Return what the announcements read: only times."""
        time = fields_read([TIME], Kind.TRANSFORMATION)
        return ColumnReads({"at": time, TIME: time}, fields_read([TIME], Kind.FILTER))

    async def process(self, _record: In, ctx: Context, /) -> None:
        """Announce a snapshot, unless it is known, or complete already."""
        if ctx.timestamp <= ctx.watermark or await self.known.value():
            return
        await self.known.update(True)
        ctx.timers.register_event_time(ctx.timestamp)
        ctx.collect(Snapshot(ctx.timestamp))

    async def on_timer(self, _timestamp: int, _ctx: Context, /) -> None:
        """Forget a snapshot when the watermark reaches its time: no row of it can come any more."""
        await self.known.clear()


class SnapshotChangesFunction(KeyedBroadcastFunction[In, Announced, Out]):
    """Emits each row as an update, and a deletion for each snapshot that lacks a key which the one before it has.

    `pending` holds the rows of a key in snapshots that are not complete, by the text of their time; `present` the row in the last
    complete one. A snapshot is complete when the watermark reaches its time: its rows are emitted then, so the changes of a key
    come in the order of the snapshots. Timers compare a key with the snapshots: at the time of its row, `every` ms after it, and so on.
    """

    present: ValueState[Any]
    pending: MapState[str, Any]
    snapshots: BroadcastState[str, int]

    def __init__(self, time: str, every: int) -> None:
        """Take the field of the snapshot's time, and the step of the comparison (ms)."""
        self._time = time
        self._every = every
        self._at = attrgetter(time)

    def column_reads(self) -> ColumnReads:
        """Return what the changes read: rows, their times, and which snapshots there are."""
        takes, announced = function_types(self)[0]
        columns = {**copied(takes.__struct_fields__), TIME: fields_read([self._time], Kind.IDENTITY)}
        snapshots = fields_read([TIME, *announced.__struct_fields__], Kind.FILTER, number=1)
        return ColumnReads(columns, fields_read([self._time, TIME], Kind.FILTER) | snapshots)

    async def process(self, record: In, ctx: Context, /) -> None:
        """Keep a row until its snapshot is complete. One that comes later goes to the quarantine, and one with another event time."""
        at = self._at(record)
        if at != ctx.timestamp:
            ctx.quarantine(f"its event time is {ctx.timestamp}, and {self._time}, the time of its snapshot, is {at}")
        elif at <= ctx.watermark:
            ctx.quarantine(f"its snapshot, {self._time}={at}, is complete: the watermark is {ctx.watermark}")
        else:
            await self.pending.put(_text(at), record)
            self._compare_at(at, ctx)

    def process_broadcast(self, _record: Announced, ctx: BroadcastContext, /) -> None:
        """Remember a snapshot, and forget those that all keys were compared with."""
        for order, at in self.snapshots.items():
            if at <= ctx.watermark - self._every:
                self.snapshots.remove(order)
        self.snapshots.put(_text(ctx.timestamp), ctx.timestamp)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Compare the key with the snapshots up to a time (ms), in their order."""
        before = present = await self.present.value()
        for order, at in self.snapshots.items():
            if at > timestamp or (present is not None and at <= self._at(present)):
                continue
            row = await self.pending.get(order)
            if row is not None:
                await self.pending.remove(order)
                ctx.collect(row, RowKind.UPDATE_AFTER, timestamp=at)
                present = row
            elif present is not None:
                deletion = msgspec.structs.replace(present, **{self._time: at})
                ctx.collect(deletion, RowKind.DELETE, timestamp=at)
                present = None
        if present is not before:
            await (self.present.clear() if present is None else self.present.update(present))
        if present is not None and (timestamp - self._at(present)) % self._every == 0:
            self._compare_at(timestamp + self._every, ctx)  # each row has its own steps: those of the present one go on

    @staticmethod
    def _compare_at(at: int, ctx: Context) -> None:
        if at <= LAST_TIME:
            ctx.timers.register_event_time(at)


def announced_snapshots(takes: type[In]) -> KeyedProcessFunction[In, Snapshot]:
    """Return the function that announces snapshots to all keys."""

    class AnnouncedSnapshotsOf(AnnouncedSnapshots[takes, Snapshot]):  # type: ignore[valid-type]  # known when it is called
        pass

    return AnnouncedSnapshotsOf()


def snapshot_changes(takes: type[In], time: str, every: timedelta) -> KeyedBroadcastFunction[In, Snapshot, In]:
    """Return the function of `Stream.snapshot_changes`.

    Raises `ValueError` for a step below 1 ms and a field that the record lacks, `TypeError` unless the field is a `Timestamp`.
    """
    wanted = ValueType(int, may_be_none=False, unit="ms")
    if (given := value_type(takes, time)) != wanted:
        msg = f"time is the field with the event time of a snapshot, a Timestamp, and '{time}' of {takes.__name__} is {given}"
        raise TypeError(msg)

    class SnapshotChanges(SnapshotChangesFunction[takes, Snapshot, takes]):  # type: ignore[valid-type]  # known when it is called
        present = ValueState("present", takes)
        pending = MapState("pending", str, takes)
        snapshots = BroadcastState("snapshots", str, int)

    return SnapshotChanges(time, milliseconds_of(every))
