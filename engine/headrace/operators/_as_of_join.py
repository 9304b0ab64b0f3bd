"""Join each record with the version of its key that was valid at its event time (Flink: `TemporalRowTimeJoinOperator`).

Or, by processing time, with the latest version that has arrived (Flink: `TemporalProcessTimeJoinOperator`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from headrace.api.changelog import StreamChanges
from headrace.api.functions import Context, TimeDomain
from headrace.api.options import JoinFunction, JoinType
from headrace.api.records import RowKind, Struct
from headrace.api.states import ListState, MapState, ValueState
from headrace.api.ttl import StateTtl
from headrace.operators._event_time import freed_by
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType

Left = TypeVar("Left", bound=Struct)
Right = TypeVar("Right", bound=Struct)
Out = TypeVar("Out", bound=Struct)

_time = sort_text("event time", ValueType(int, may_be_none=False), descending=False)


class Waiting(Struct, frozen=True):
    """A left record that waits for the watermark, and its row kind."""

    record: Any
    kind: int


class Version(Struct, frozen=True):
    """Record of a key that is valid from an event time (ms) on; None if the key was deleted then."""

    at: int
    record: Any


class _VersionsJoin(JoinFunction[Left, Right, Out]):
    """Joins left records with the versions of a key that the right stream defines."""

    KIND = "as-of join"
    TAKER = "join_as_of"
    takes_upserts = (1,)

    def changes(self, name: str, _keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the left side, each at the time of its event.

        Raises `ValueError` for versions whose updates may lack their new rows: nothing would end the version before.
        """
        left, right = taken
        if right.mode.is_retract and right.may_lack_updates and right.is_known:
            msg = (
                f"{self.TAKER} '{name}': a step before it may drop the new row of an update of a version (filter, flat_map, an inner join), and "
                "nothing would say when the version before it ends: call drop_update_before(KEY) before that step, whose refused rows "
                "are then -D"
            )
            raise ValueError(msg)
        changes = replace(left, unique=(), may_lack_updates=True)
        return replace(changes, reordered_by=name, ordered_within=None) if left.may_retract else changes


class AsOfJoinFunction(_VersionsJoin[Left, Right, Out]):
    """Joins left records with the versions of a key that the right stream defines.

    `waiting` holds the left records that the watermark has not reached, in the namespace of their event time (ms), with
    a timer for that time. `versions` holds the versions by event time, as a text that sorts; a timer for each one frees
    those before it.
    """

    LATE = "late"

    waiting: ListState[Any]
    versions: MapState[str, Any]

    def changes(self, name: str, keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the left side, each at the time of its event.

        Raises `ValueError` also for versions whose deletions come at the time of the deleted row: it would count as never valid.
        """
        if (operator := taken[1].dated_back_by) is not None:
            msg = (
                f"{self.TAKER} '{name}': a -D of '{operator}' has the event time of the row that it takes back, so nothing says when a version "
                f"ends, and it would count as never valid. Join the changes before '{operator}', in place of its rows: "
                "drop_update_before(KEY).key_by(...) of a stream whose -D has the time of the deletion"
            )
            raise ValueError(msg)
        return super().changes(name, keys, taken)

    def __init__(
        self,
        types: tuple[type[Struct], Any, Any],
        emit: Callable[[Any, Any], Any],
        *,
        how: JoinType,
        retracting: bool,
        ttl: StateTtl | None,
    ) -> None:
        """Take the types of left records, of waiting records and of versions."""
        self._left, self._waiting, self._version = types
        self._emit = emit
        self._how = how
        self._ttl = ttl
        self.retracts = retracting

    async def process1(self, record: Left, ctx: Context, /) -> None:
        """Store a left record until no earlier version can arrive. A record that the watermark has reached is late."""
        if ctx.timestamp <= ctx.watermark:
            self.set_aside_late(record, ctx)
            return
        waiting = self.waiting.namespace(str(ctx.timestamp))
        await waiting.add(self._waiting(record=record, kind=int(ctx.row_kind)))
        ctx.timers.register_event_time(ctx.timestamp)

    async def process2(self, record: Right, ctx: Context, /) -> None:
        """Store a version. `-D` ends the version before it. `-U` does nothing: the row that replaces it has its own event time."""
        if ctx.row_kind is RowKind.UPDATE_BEFORE:
            return
        is_deleted = ctx.row_kind is RowKind.DELETE
        version = self._version(at=ctx.timestamp, record=None if is_deleted else record)
        await self.versions.put(_time(ctx.timestamp), version)
        if ctx.timestamp > ctx.watermark:
            ctx.timers.register_event_time(ctx.timestamp)
        else:
            await self._valid(ctx.watermark)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Join the left records of this timestamp, and free the versions that no later record needs."""
        version = await self._valid(timestamp)
        right = None if version is None else version.record
        waiting = self.waiting.namespace(str(timestamp))
        if right is not None or self._how is JoinType.LEFT:
            for left in await waiting.get():
                ctx.collect(self._emit(left.record, right), RowKind(left.kind))
        await waiting.clear()

    async def _valid(self, at: int) -> Any:
        """Return the version that is valid at a timestamp (ms), or None; free those before it.

        A deletion is kept like a version: otherwise a late version from before it would become valid again.
        """
        valid = None
        async for version in self.versions.values():
            if version.at > at:
                break
            if valid is not None:
                await self.versions.remove(_time(valid.at))
            valid = version
        return valid

    def side_types(self) -> dict[str, type[Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {self.LATE: self._left}

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {
            "join": self._how.value,
            "late_records": "go to side output 'late'" if self.LATE in self.declared else "are dropped",
            "state_kept": "a row for each left record and each version that the watermark has not reached, and one for the last "
            "version of each key; a timer for each of their event times",
            "state_freed": f"when the watermark reaches the left record, or the next version; a version before that: {freed_by(self._ttl)}",
        }


class LatestJoinFunction(_VersionsJoin[Left, Right, Out]):
    """Joins left records with the latest version of their key that has arrived before them, and emits them at once."""

    latest: ValueState[Any]

    def __init__(self, emit: Callable[[Any, Any], Any], how: JoinType, ttl: StateTtl | None) -> None:
        """Take the function of the results, and the TTL of the state."""
        self._emit = emit
        self._how = how
        self._ttl = ttl

    async def process1(self, record: Left, ctx: Context, /) -> None:
        """Emit a left record with the latest version. Raises `ValueError` for a retraction."""
        if ctx.row_kind.is_retraction:
            msg = f"{self.TAKER} by processing time cannot take a record back, and this one is {ctx.row_kind.symbol}: {_WAY_OUT}"
            raise ValueError(msg)
        right = None if self.has_null_key(ctx) else await self.latest.value()
        if right is not None or self._how is JoinType.LEFT:
            ctx.collect(self._emit(record, right), ctx.row_kind)

    async def process2(self, record: Right, ctx: Context, /) -> None:
        """Store a version, or remove it with `-D`. `-U` does nothing: the row that replaces it follows."""
        if ctx.row_kind is RowKind.DELETE:
            await self.latest.clear()
        elif ctx.row_kind is not RowKind.UPDATE_BEFORE:
            await self.latest.update(record)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {
            "join": self._how.value,
            "time": "processing time: the latest version in arrival order",
            "state_kept": "a row for each key, with its latest version",
            "state_freed": f"with the deletion of the version, or {freed_by(self._ttl)}",
        }


_WAY_OUT = "the version that it was joined with may be gone: use event time, or additions(), which makes each version of a record a new one"


def _latest_join(
    left: type[Left],
    right: type[Right],
    gives: type[Out],
    /,
    *,
    emit: Callable[..., Any],
    how: JoinType,
    retracting: bool,
    ttl: StateTtl | None,
) -> JoinFunction[Left, Right, Out]:
    if retracting:
        msg = f"processing time needs records that are never taken back, and the left stream may have -U or -D: {_WAY_OUT}"
        raise ValueError(msg)

    class LatestJoin(LatestJoinFunction[left, right, gives]):  # type: ignore[valid-type]  # known when it is called
        latest = ValueState("latest_version", right, ttl=ttl)

    return LatestJoin(emit, how, ttl)


def as_of_join(
    sides: tuple[type[Left], type[Right]],
    gives: type[Out],
    /,
    *,
    emit: Callable[..., Any],
    how: JoinType,
    retracting: bool,
    ttl: StateTtl | None,
    time: TimeDomain = TimeDomain.EVENT_TIME,
) -> JoinFunction[Left, Right, Out]:
    """Return the function of `Stream.join_as_of`.

    Raises `ValueError` for left records that may be retracted, by processing time.
    """
    left, right = sides
    if time is TimeDomain.PROCESSING_TIME:
        return _latest_join(left, right, gives, emit=emit, how=how, retracting=retracting, ttl=ttl)
    waits: Any = msgspec.defstruct(
        f"Waiting{left.__name__}", [("record", left), ("kind", int)], bases=(Waiting,), frozen=True
    )
    version: Any = msgspec.defstruct(
        f"{right.__name__}Version", [("at", int), ("record", right | None)], bases=(Version,), frozen=True
    )

    class AsOfJoin(AsOfJoinFunction[left, right, gives]):  # type: ignore[valid-type]  # known when it is called
        waiting = ListState("waiting", waits)
        versions = MapState("versions", str, version, ttl=ttl)

    return AsOfJoin((left, waits, version), emit, how=how, retracting=retracting, ttl=ttl)
