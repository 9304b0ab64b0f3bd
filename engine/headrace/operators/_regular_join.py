"""Regular join: every record of one side with every record of the other, for as long as both are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from headrace.api.batches import Bundle, BundleFunction
from headrace.api.changelog import ChangelogMode, StreamChanges
from headrace.api.column_reads import TIME, ColumnReads, Kind, fields_read
from headrace.api.functions import Context
from headrace.api.graph import name_of
from headrace.api.options import JoinFunction, JoinType
from headrace.api.records import RowKind, Struct
from headrace.api.states import MapState
from headrace.api.ttl import Lifetime, StateTtl
from headrace.operators._event_time import LAST_TIME
from headrace.operators._joined_rows import RowForm, Side, SingleRow, is_same, sides_of
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


_ROW_KINDS = tuple(RowKind)


Rows = MapState[Any, Any] | SingleRow
"""Stored records of a side under the key whose code runs, by their names."""


class RegularJoin(JoinFunction[In1, In2, Out], BundleFunction):
    """Joins two changelogs of equal keys, as Flink's `StreamingJoinOperator` does.

    The state of a side is a multiset: a map from a record's digest to the record and the number of its copies. A side with a
    known unique key has one row for each, and takes upserts: a record takes the place of the one before it. For a side whose
    unmatched records are in the result, the state also holds the number of matches of each copy: the first match retracts
    the copy's unmatched row, and the loss of the last match emits it again.
    """

    KIND = "join"
    TAKER = "join"

    left: Any
    right: Any

    def __init__(
        self,
        emit: Callable[..., Any],
        how: JoinType,
        sides: tuple[Side, Side],
        *,
        on: Condition | None,
        retracting: bool,
    ) -> None:
        """Take both sides. Records match where `on` is true, None: all of a key."""
        self._emit = emit
        self._on = self.condition = on
        self._how = how
        self._sides = sides
        self._both_ways = (sides, sides[::-1])
        self.takes_upserts = tuple(side.number for side in sides if side.form.is_upsert)
        self.deletes_inserts = how is not JoinType.INNER
        self.retracts = retracting or self.deletes_inserts

    def column_reads(self) -> ColumnReads:
        """Return what the results read of both inputs; a row takes the place of the one with its unique key.

        If it equals that one, it changes nothing, and lets no partner live longer.
        """
        taken = super().column_reads()
        sides = [side for side in self._sides if side.is_unique]
        keys = [fields_read(side.form.unique, Kind.GROUP_BY, number=side.number) for side in sides]
        rows = [fields_read(side.fields, Kind.CONDITIONAL, number=side.number) for side in sides]
        renewing = rows if any(side.ttl is not None for side in self._sides) else []
        time = taken.time(inputs=2).union(*rows)
        return ColumnReads({**taken.columns, TIME: time}, taken.rows.union(*keys, *renewing))

    async def process1(self, record: In1, ctx: Context, /) -> None:
        """Add or retract a left record."""
        await self._process(record, ctx, *self._both_ways[0])

    async def process2(self, record: In2, ctx: Context, /) -> None:
        """Add or retract a right record."""
        await self._process(record, ctx, *self._both_ways[1])

    async def _process(self, record: Struct, ctx: Context, side: Side, other: Side) -> None:
        if ctx.row_kind.is_retraction:
            await self._take_back(record, ctx, ctx.row_kind, side, other)
        elif self._how is JoinType.INNER and not side.is_unique:
            await self._pair(record, ctx, ctx.row_kind, side, await self._stored(other))
        else:
            await self._set(record, ctx, side, other)

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
        return [kept async for kept in self._rows(side).values()]

    async def _pair(self, record: Struct, ctx: Context, kind: RowKind, side: Side, partners: Sequence[Any]) -> None:
        """Add a record to an inner join."""
        own, name = self._rows(side), side.name_of(record)
        kept = await own.get(name)
        at = ctx.timestamp if kept is None else kept.at
        on, number = self._on, side.number
        for partner in partners:
            if on is None or fits(on, number, record, partner.record):
                self._show_pairs(ctx, kind, side, (record, at), partner)
        await own.put(name, side.type.of(record, at, 0) if kept is None else kept.more(0))

    async def _set(self, record: Struct, ctx: Context, side: Side, other: Side) -> None:
        """Add a record, or put it in the place of the one with its unique key."""
        name = side.name_of(record)
        kept = await self._rows(side).get(name)
        if kept is None or not side.is_unique:
            await self._add(record, (name, kept), ctx, side, other)
        elif is_same(kept.record, record):
            await self._rows(side).put(name, kept)  # renews its lifetime
        else:
            await self._replace(kept, record, ctx, side, other)

    async def _add(self, record: Struct, entry: tuple[Any, Any], ctx: Context, side: Side, other: Side) -> None:
        """Add a record to its entry: the name, and what is stored of its copies."""
        (name, kept), partners = entry, self._rows(other)
        at = ctx.timestamp if kept is None else kept.at
        shown = ctx.row_kind if self._how is JoinType.INNER else RowKind.INSERT
        matches = 0
        for partner_name, partner in await self._matching(record, ctx, side, other):
            matches += partner.total
            if other.is_kept:
                self._show_change(ctx, other, partner, 1)
                await partners.put(partner_name, partner.matched(1))
            self._show_pairs(ctx, shown, side, (record, at), partner)
        place = matches if side.is_kept else 0
        added = side.type.of(record, at, place) if kept is None else kept.more(place)
        await self._rows(side).put(name, added)
        if side.is_kept and self._shows(matches):
            self._show(ctx, RowKind.INSERT, side, added, 1)

    async def _replace(self, old: Any, record: Struct, ctx: Context, side: Side, other: Side) -> None:
        """Put a record in the place of another one; partners that match both only change their pairs."""
        name = side.name_of(record)
        await self._remove_copy(name, old, ctx, side)
        new, matches = (record, ctx.timestamp), 0
        for partner_name, partner in await self._partners(ctx, other):
            did_match, does_match = self._matches(side, old.record, partner), self._matches(side, record, partner)
            removed, added = self._replaced_kinds(is_update=did_match and does_match)
            if did_match:
                self._show_pairs(ctx, removed, side, (old.record, old.at), partner)
            if other.is_kept and (did_match or does_match):
                self._show_change(ctx, other, partner, does_match - did_match)
                await self._rows(other).put(partner_name, partner.matched(does_match - did_match))
            if does_match:
                matches += partner.total
                self._show_pairs(ctx, added, side, new, partner)
        kept = side.type.of(*new, matches if side.is_kept else 0)
        await self._rows(side).put(name, kept)
        if side.is_kept and self._shows(matches):
            self._show(ctx, RowKind.INSERT, side, kept, 1)

    def _replaced_kinds(self, *, is_update: bool) -> tuple[RowKind, RowKind]:
        """Return the kinds of pairs with the old record and with the new one, where a partner has both or one of them."""
        is_shown = is_update and self._how is JoinType.INNER
        return (RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER) if is_shown else (RowKind.DELETE, RowKind.INSERT)

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
                await self._rows(other).put(partner_name, partner.matched(-1))
                self._show_change(ctx, other, partner, -1)

    async def _remove_copy(self, name: Any, kept: Any, ctx: Context, side: Side) -> None:
        """Remove one copy of a record, and its own row."""
        rest = kept.fewer()
        if rest is None:
            await self._rows(side).remove(name)
        else:
            await self._rows(side).put(name, rest)
        if side.is_kept and self._shows(kept.matches):
            self._show(ctx, RowKind.DELETE, side, kept, 1)

    async def _matching(self, record: Struct, ctx: Context, side: Side, other: Side) -> list[tuple[Any, Any]]:
        """Return the records of the other side that a record matches, with their names: none for a null key."""
        if self.has_null_key(ctx):
            return []
        on, number, entries = self._on, side.number, self._rows(other).entries()
        return [entry async for entry in entries if on is None or fits(on, number, record, entry[1].record)]

    async def _partners(self, ctx: Context, other: Side) -> list[tuple[Any, Any]]:
        """Return the records of the other side with their names: none for a null key."""
        return [] if self.has_null_key(ctx) else [entry async for entry in self._rows(other).entries()]

    def _matches(self, side: Side, record: Any, partner: Any) -> bool:
        """Return whether a record and a stored one of the other side match."""
        return self._on is None or fits(self._on, side.number, record, partner.record)

    async def _find(self, record: Struct, side: Side) -> tuple[Any, Any]:
        """Return the name and the entry of a stored record; the entry is None if it is not stored.

        A record that was stored before its class got a field with a default has another digest, but is still equal.
        """
        rows, name = self._rows(side), side.name_of(record)
        kept = await rows.get(name)
        if side.is_unique:
            is_it = kept is not None and (side.form.is_upsert or is_same(kept.record, record))
            return name, kept if is_it else None
        if kept is not None:
            return name, kept
        async for name, entry in rows.entries():
            if are_equal(entry.record, record):
                return name, entry
        return name, None

    def _rows(self, side: Side) -> Rows:
        state = self.right if side.number else self.left
        return SingleRow(state) if side.is_single else state

    def _show_change(self, ctx: Context, side: Side, kept: Any, change: int) -> None:
        """Emit what a match more (1) or less (-1) changes of the own rows of a record."""
        if change > 0:
            self._show_first_match(ctx, side, kept, kept.number(0))
        elif change < 0:
            self._show_no_match(ctx, side, kept, kept.number(1))

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
        """Return the changes of the result: unknown where those of an input are, since a retraction there takes results back.

        Of an update in an inner join, the old row may have partners, and the new one none.
        """
        changes = replace(
            super().changes(name, keys, taken), may_lack_updates=self._how is JoinType.INNER and self.retracts
        )
        if self.retracts or all(side.is_known for side in taken):
            return changes
        return replace(changes, mode=ChangelogMode.RETRACT, is_known=False)

    def fields_of_deletions(self, number: int, /) -> tuple[str, ...] | None:
        """Return the unique key of upserts: the stored row has the other fields."""
        return self._sides[number].form.unique if number in self.takes_upserts else None

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
            "state_kept": self._kept_rows(),
            "state_freed": "when a record is taken back, "
            + (f"or that long after it was added{renewed} last" if bounded else "and never else"),
        }

    def _kept_rows(self) -> str:
        """Return what is stored, for people."""
        if any(side.is_unique for side in self._sides):
            return "; ".join(f"{side.name}, {side.form}" for side in self._sides)
        return "a row for each key, side and different record"


def _lifetime(ttl: StateTtl | None) -> timedelta | str:
    return Lifetime.FOREVER.value if ttl is None or not ttl.is_active else ttl.ttl


def regular_join(
    records: tuple[type[In1], type[In2]],
    gives: type[Out],
    /,
    *,
    emit: Callable[..., Out],
    how: JoinType,
    forms: tuple[RowForm, RowForm],
    lifetimes: tuple[StateTtl | None, StateTtl | None],
    on: Condition | None,
    retracting: bool,
) -> JoinFunction[In1, In2, Out]:
    """Return the function that joins `records` of both sides into `gives`.

    `forms` and `lifetimes` are those of the states of left and right; `on` says of a left and a right record whether they match;
    `retracting` says that a side may retract records.
    """
    takes1, takes2 = records
    sides = sides_of(records, forms, lifetimes, how)

    # The names say on which side matches are counted, and whether by a condition: with another `how`, the stored counts would be wrong.
    counted = "outer" if on is None else "outer_on"

    class Join(RegularJoin[takes1, takes2, gives]):  # type: ignore[valid-type]  # known when it is called
        left = sides[0].state(f"left_{counted}" if how.keeps_left else "left")
        right = sides[1].state(f"right_{counted}" if how.keeps_right else "right")

    return Join(emit, how, sides, on=on, retracting=retracting)
