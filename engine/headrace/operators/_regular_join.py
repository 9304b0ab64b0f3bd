"""Regular join: every record of one side with every record of the other, for as long as both are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from headrace.api.batches import Bundle, BundleFunction
from headrace.api.changelog import ChangelogMode, StreamChanges
from headrace.api.functions import Context
from headrace.api.graph import name_of
from headrace.api.options import JoinFunction, JoinType
from headrace.api.records import RowKind, Struct, canonical_encoder
from headrace.api.states import MapState
from headrace.api.ttl import Lifetime, StateTtl
from headrace.operators._event_time import LAST_TIME
from headrace.operators._normalize import unmatched
from headrace.operators._value_types import are_equal

In1 = TypeVar("In1", bound=Struct)
In2 = TypeVar("In2", bound=Struct)
Out = TypeVar("Out", bound=Struct)

Condition = Callable[[Any, Any], object]
"""Function of a left and a right record: true if they match."""


def fits(on: Condition, input_: int, record: Any, partner: Any) -> bool:
    """Return whether a record of an input (0: left) and one of the other input match."""
    return bool(on(partner, record) if input_ else on(record, partner))


_encode = canonical_encoder("sorted")
_ROW_KINDS = tuple(RowKind)


class _Kept(Struct, frozen=True):
    """A record of one side. The class of a join adds the `record`.

    `at` is its event time (ms). `copies` has the number of equal records for each number of matches on the other side. If
    a side appears only in pairs, all its copies count under 0.
    """

    at: int
    copies: dict[int, int]

    @property
    def total(self) -> int:
        return sum(self.copies.values())


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a join: its number, its name for people, and whether its unmatched records are in the result."""

    number: int
    name: str
    is_kept: bool
    type: Any
    """Class in which its records are stored."""
    ttl: StateTtl | None


class RegularJoin(JoinFunction[In1, In2, Out], BundleFunction):
    """Joins two changelogs of equal keys, as Flink's `StreamingJoinOperator` does.

    The state of a side is a multiset: a map from a record's digest to the record and the number of its copies. For a
    side whose unmatched records are in the result, it also holds the number of matches of each copy: the first match
    retracts the copy's unmatched row, and the loss of the last match emits it again.
    """

    KIND = "join"
    TAKER = "join"

    left: MapState[str, Any]
    right: MapState[str, Any]

    def __init__(
        self,
        emit: Callable[..., Any],
        how: JoinType,
        types: tuple[type, type],
        lifetimes: tuple[StateTtl | None, StateTtl | None],
        *,
        on: Condition | None,
        retracting: bool,
    ) -> None:
        """Take the stored classes of both sides, and the TTLs of their states; records match where `on` is true, None: all of a key."""
        self._emit = emit
        self._on = self.condition = on
        self._how = how
        self._sides = (
            Side(0, "left", how.keeps_left, types[0], lifetimes[0]),
            Side(1, "right", how.keeps_right, types[1], lifetimes[1]),
        )
        self._both_ways = (self._sides, self._sides[::-1])
        self.retracts = retracting or how is not JoinType.INNER

    async def process1(self, record: In1, ctx: Context, /) -> None:
        """Add or retract a left record."""
        await self._process(record, ctx, *self._both_ways[0])

    async def process2(self, record: In2, ctx: Context, /) -> None:
        """Add or retract a right record."""
        await self._process(record, ctx, *self._both_ways[1])

    async def _process(self, record: Struct, ctx: Context, side: Side, other: Side) -> None:
        if ctx.row_kind.is_retraction:
            await self._take_back(record, ctx, ctx.row_kind, side, other)
        elif self._how is JoinType.INNER:
            await self._pair(record, ctx, ctx.row_kind, side, await self._stored(other))
        else:
            await self._add(record, ctx, side, other)

    @property
    def takes_bundles(self) -> bool:
        """Return whether records may come in bundles: where each one only adds to the result and to its own side."""
        return not self.retracts

    def first_timer(self, _timestamp: int, /) -> int:
        """Return the end of time: a join that takes bundles has no timers."""
        return LAST_TIME

    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Join records with those stored and those before them, with one read of each side that does not grow meanwhile."""
        stored: list[Sequence[Any] | None] = [None, None]
        for record in bundle.walk(bundle.records):
            side, other = self._both_ways[record.input]
            kind = _ROW_KINDS[record.kind]
            if kind.is_retraction:  # of a function that declares no emits=
                await self._take_back(record.record, ctx, kind, side, other)
                stored[side.number] = None
                continue
            partners = stored[other.number]
            if partners is None:
                partners = stored[other.number] = await self._stored(other)
            await self._pair(record.record, ctx, kind, side, partners)
            stored[side.number] = None

    async def _stored(self, side: Side) -> Sequence[Any]:
        """Return the records of a side."""
        return [kept async for kept in self._state(side).values()]

    async def _pair(self, record: Struct, ctx: Context, kind: RowKind, side: Side, partners: Sequence[Any]) -> None:
        """Add a record to an inner join."""
        own, name = self._state(side), _digest(record)
        kept = await own.get(name)
        at = ctx.timestamp if kept is None else kept.at
        on, number = self._on, side.number
        for partner in partners:
            if on is None or fits(on, number, record, partner.record):
                self._show_pairs(ctx, kind, side, (record, at), partner)
        copies = {0: 1} if kept is None else {**kept.copies, 0: kept.copies.get(0, 0) + 1}
        await own.put(name, side.type(at=at, copies=copies, record=record))

    async def _add(self, record: Struct, ctx: Context, side: Side, other: Side) -> None:
        """Add a record to an outer join."""
        own, partners = self._state(side), self._state(other)
        name = _digest(record)
        kept = await own.get(name)
        at = ctx.timestamp if kept is None else kept.at
        matches = 0
        for partner_name, partner in await self._matching(record, ctx, side, other):
            matches += partner.total
            if other.is_kept:
                self._show_first_match(ctx, other, partner, partner.copies.get(0, 0))
                await partners.put(partner_name, _matched(partner, 1))
            self._show_pairs(ctx, RowKind.INSERT, side, (record, at), partner)
        place = matches if side.is_kept else 0
        copies = {} if kept is None else kept.copies
        added = side.type(at=at, copies={**copies, place: copies.get(place, 0) + 1}, record=record)
        await own.put(name, added)
        if side.is_kept and self._shows(matches):
            self._show(ctx, RowKind.INSERT, side, added, 1)

    async def _take_back(self, record: Struct, ctx: Context, kind: RowKind, side: Side, other: Side) -> None:
        name, kept = await self._find(record, side)
        if kept is None:
            ctx.quarantine(unmatched(kind, f"{side.name} records of its key", side.ttl))
            return
        await self._remove_copy(name, kept, ctx, side)
        shown = kind if self._how is JoinType.INNER else RowKind.DELETE
        for partner_name, partner in await self._matching(kept.record, ctx, side, other):
            self._show_pairs(ctx, shown, side, (kept.record, kept.at), partner)
            if other.is_kept:
                await self._state(other).put(partner_name, _matched(partner, -1))
                self._show_no_match(ctx, other, partner, partner.copies.get(1, 0))

    async def _remove_copy(self, name: str, kept: Any, ctx: Context, side: Side) -> None:
        """Remove one copy of a record, and its own row."""
        # Copies have different numbers of matches only if a TTL removed partners of the earlier copies.
        place = min(kept.copies)
        copies = {matches: count for matches, count in kept.copies.items() if matches != place}
        if kept.copies[place] > 1:
            copies[place] = kept.copies[place] - 1
        if copies:
            await self._state(side).put(name, msgspec.structs.replace(kept, copies=copies))
        else:
            await self._state(side).remove(name)
        if side.is_kept and self._shows(place):
            self._show(ctx, RowKind.DELETE, side, kept, 1)

    async def _matching(self, record: Struct, ctx: Context, side: Side, other: Side) -> list[tuple[str, Any]]:
        """Return the records of the other side that a record matches, with their names: none for a null key."""
        if self.has_null_key(ctx):
            return []
        on, number, entries = self._on, side.number, self._state(other).entries()
        return [(name, kept) async for name, kept in entries if on is None or fits(on, number, record, kept.record)]

    async def _find(self, record: Struct, side: Side) -> tuple[str, Any]:
        """Return the name and the entry of a stored record; the entry is None if it is not stored.

        A record that was stored before its class got a field with a default has another digest, but is still equal.
        """
        state, name = self._state(side), _digest(record)
        kept = await state.get(name)
        if kept is not None:
            return name, kept
        async for name, entry in state.entries():
            if are_equal(entry.record, record):
                return name, entry
        return name, None

    def _state(self, side: Side) -> MapState[str, Any]:
        return self.right if side.number else self.left

    def _shows(self, matches: int) -> bool:
        """Return whether a record with so many matches has a row of its own."""
        return matches == 0

    def _show_first_match(self, ctx: Context, side: Side, kept: Any, copies: int) -> None:
        """Emit the change of a record that gets its first match: its row of its own goes."""
        self._show(ctx, RowKind.DELETE, side, kept, copies)

    def _show_no_match(self, ctx: Context, side: Side, kept: Any, copies: int) -> None:
        """Emit the change of a record that loses its last match: its row of its own is there again."""
        self._show(ctx, RowKind.INSERT, side, kept, copies)

    def _show(self, ctx: Context, kind: RowKind, side: Side, kept: Any, copies: int) -> None:
        """Emit the record's row of its own, `copies` times."""
        pair = (None, kept.record) if side.number else (kept.record, None)
        for _ in range(copies):
            ctx.collect(self._emit(*pair), kind, timestamp=kept.at)

    def _show_pairs(self, ctx: Context, kind: RowKind, side: Side, taken: tuple[Struct, int], partner: Any) -> None:
        """Emit a record with each copy of a partner; the event time is the later of the two."""
        record, at = taken
        pair = (partner.record, record) if side.number else (record, partner.record)
        for _ in range(partner.total):
            ctx.collect(self._emit(*pair), kind, timestamp=max(at, partner.at))

    def changes(self, name: str, keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the result: unknown where those of an input are, since a retraction there takes results back."""
        changes = super().changes(name, keys, taken)
        if self.retracts or all(side.is_known for side in taken):
            return changes
        return replace(changes, mode=ChangelogMode.RETRACT, is_known=False)

    def described(self) -> dict[str, Any]:
        """Return the kind of join, the lifetime of each side, and when state is freed."""
        lifetimes = [_lifetime(side.ttl) for side in self._sides]
        bounded = any(isinstance(lifetime, timedelta) for lifetime in lifetimes)
        renewed = "" if self._how is JoinType.INNER else " or matched"
        return {
            "join": f"regular, {self._how.value}",
            **({} if self._on is None else {"on": name_of(self._on)}),
            "emits": "the row kinds of its inputs" if self._how is JoinType.INNER else "+I and -D",
            "left_kept_for": lifetimes[0],
            "right_kept_for": lifetimes[1],
            "state_kept": "a row for each key, side and different record",
            "state_freed": "when a record is taken back, "
            + (f"or that long after it was added{renewed} last" if bounded else "and never else"),
        }


def _matched(kept: Any, change: int) -> Any:
    """Return a record whose copies have `change` more matches."""
    copies: dict[int, int] = {}
    for matches, count in kept.copies.items():
        place = max(matches + change, 0)
        copies[place] = copies.get(place, 0) + count
    return msgspec.structs.replace(kept, copies=copies)


def _digest(record: Struct) -> str:
    return hashlib.blake2b(_encode(record), digest_size=16).hexdigest()


def _lifetime(ttl: StateTtl | None) -> timedelta | str:
    return Lifetime.FOREVER.value if ttl is None or not ttl.is_active else ttl.ttl


def kept_type(record: type[Struct]) -> type[Struct]:
    """Return the class in which records of a side are stored."""
    return msgspec.defstruct(f"Joined{record.__name__}", [("record", record)], bases=(_Kept,), frozen=True)


def regular_join(
    sides: tuple[type[In1], type[In2]],
    gives: type[Out],
    /,
    *,
    emit: Callable[..., Out],
    how: JoinType,
    lifetimes: tuple[StateTtl | None, StateTtl | None],
    on: Condition | None,
    retracting: bool,
) -> JoinFunction[In1, In2, Out]:
    """Return the function that joins records of both `sides` into `gives`.

    `lifetimes` are the TTLs of left and right; `on` says of a left and a right record whether they match; `retracting` says that a side may retract records.
    """
    takes1, takes2 = sides
    types = (kept_type(takes1), kept_type(takes2))

    # The names say on which side matches are counted, and whether by a condition: with another `how`, the stored counts would be wrong.
    counted = "outer" if on is None else "outer_on"

    class Join(RegularJoin[takes1, takes2, gives]):  # type: ignore[valid-type]  # known when it is called
        left = MapState(f"left_{counted}" if how.keeps_left else "left", str, types[0], ttl=lifetimes[0])
        right = MapState(f"right_{counted}" if how.keeps_right else "right", str, types[1], ttl=lifetimes[1])

    return Join(emit, how, types, lifetimes, on=on, retracting=retracting)
