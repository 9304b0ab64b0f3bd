"""Rows of many keys together, and the timers that fire: what `OverFunction` does with them one by one.

Each key has its own loop over times. State is read for all keys with one call before it, and written once behind it.

    watermark before  4     records at  5 9 6      watermark behind  20      a range of 10

    time       5     6     9     15            16            19
    timer      row   row   row   settle 5      settle 6      settle 9
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from headrace.api.batches import BundledRecord, KeyedColumns
from headrace.api.key_events import EventResults, KeyEvents, KeyTimer, TimerResults
from headrace.api.ttl import StateTtl, UpdateType, Visibility
from headrace.operators._column_lifetimes import columns_see_end
from headrace.operators._over_record import Row
from headrace.operators._over_rows import Changed, EmittedRow, Known, OverRows, order_of, time_text
from headrace.operators._running_fields import Flags, NotInColumnsError, keys_with, retractions

V = TypeVar("V")
W = TypeVar("W")

ROW: Final = "row"
SETTLE: Final = "settle "
"""Namespaces of timers, in the order in which those of one time fire. An event time (ms) follows the second one."""


class OverStates(NamedTuple):
    """States of one operator, of many keys."""

    waiting: Any
    rows: Any
    values: Any
    """The value of each key: `passed`, or the aggregates of a sliding range."""
    latest: Any
    """The state `latest`; None where it has no values."""


class Plan(NamedTuple):
    """Rows and timers of a key in a micro-batch."""

    key: bytes
    rows: dict[int, list[Row]]
    """Rows that the watermarks reach, by event time (ms)."""
    fired: list[KeyTimer]
    """Timers that fire, in this order."""
    stored: Collection[KeyTimer]
    """Those of them that were registered before."""
    waiting: list[tuple[BundledRecord, Row]]
    """Records that no watermark reaches."""
    registered: list[KeyTimer]
    """Timers that do not fire, and may be registered already."""
    first: list[KeyTimer]
    """Timers that do not fire, and are not registered yet: no row of their time has waited."""

    @property
    def has_rows(self) -> bool:
        """Return whether a watermark reaches a row."""
        return any(namespace == ROW for _, namespace in self.fired)

    def settled(self) -> Iterable[int]:
        """Yield the event times (ms) whose rows may be stored, and are settled."""
        return (int(namespace[len(SETTLE) :]) for _, namespace in self.stored if namespace.startswith(SETTLE))


class KeyRows(abc.ABC):
    """Rows of one key that the watermark has passed, in memory."""

    def __init__(self, key: bytes, rows: dict[int, list[Row]]) -> None:
        """Take those that are stored, by event time (ms)."""
        self.key = key
        self.rows = rows
        self._new: set[int] = set()
        self._written: dict[int, int | None] = {}
        """Event times of rows that are stored otherwise from now on, and when they were written (ms)."""

    @abc.abstractmethod
    def append(self, at: int, new: list[Row]) -> Sequence[EmittedRow]:
        """Put rows of one event time (ms) behind all others, and return the changes of results."""

    @abc.abstractmethod
    def settle(self, at: int, now: int) -> None:
        """Free the rows of an event time, at the time of a timer (both in ms)."""

    @abc.abstractmethod
    def value(self) -> tuple[Any, int | None]:
        """Return the value of the key, and when it was written (ms); None if it was not."""

    def put(self, at: int, rows: list[Row], now: int) -> None:
        """Store the rows of an event time, at the time of a timer (both in ms)."""
        if at not in self.rows:
            self._new.add(at)
        self.rows[at] = rows
        self._written[at] = now

    def free(self, at: int) -> list[Row] | None:
        """Remove and return the rows of an event time (ms); None without any."""
        rows = self.rows.pop(at, None)
        if rows is not None and at in self._new:
            self._new.remove(at)
            del self._written[at]
        elif rows is not None:
            self._written[at] = None
        return rows

    def store(self, states: OverStates) -> None:
        """Set the state of the key."""
        rows = self.rows
        states.rows.set_entries(
            self.key, [(time_text(at), rows.get(at), written) for at, written in self._written.items()]
        )
        value, written = self.value()
        if written is not None:
            states.values.set_values([self.key], [value], [written])


class PassedRows(KeyRows):
    """Rows of one key, and those that no later row can change."""

    def __init__(self, key: bytes, known: Known, logic: OverRows, name: Any, ttl: StateTtl | None) -> None:
        """Take what is stored. `name` is the key as `ctx.key` has it."""
        super().__init__(key, known.rows)
        self._known = known
        self._logic = logic
        self._name = name
        self._lifetime = ttl.milliseconds if ttl is not None and ttl.is_active else None
        self._value_written: int | None = None

    def append(self, at: int, new: list[Row]) -> Sequence[EmittedRow]:
        """Put rows of one event time (ms) behind all others, and return the changes of results."""
        logic, known = self._logic, self._known
        inserted = logic.inserted(known, at, new, self._name)
        if logic.stay:
            self._rewrite(inserted.changed, at)
        elif logic.keeps_keys:
            self._check_alive(at)
            self._pass(logic.extended(known.passed, inserted.changed.after, inserted.frame), at)
        return [*inserted.changed.emitted()]

    def settle(self, at: int, now: int) -> None:
        """Move the rows of an event time to those that no later row changes, or free them, at the time of a timer (both in ms).

        Raises `NotInColumnsError` where rows do not stay: the timer is one of code that kept them.
        """
        if not self._logic.stay:
            raise NotInColumnsError
        rows = self.free(at)
        if rows is not None and self._logic.keeps_keys:
            self._pass(self._logic.settled(self._known.passed, rows), now)

    def value(self) -> tuple[Any, int | None]:
        """Return `passed`, and when it was written (ms); None if it was not."""
        return self._known.passed, self._value_written

    def _rewrite(self, changed: Changed, at: int) -> None:
        """Store the rows that change with those of an event time (ms)."""
        last, by_time = self._logic.rewritten(changed, self._known.passed, at)
        if last is not None:
            self._pass(last, at)
        for time, rows in by_time.items():
            self.put(time, rows, at)

    def _pass(self, passed: Any, now: int) -> None:
        self._known, self._value_written = Known(passed, self.rows), now

    def _check_alive(self, at: int) -> None:
        """Raise `NotInColumnsError` if the value may have expired since it was last written, before a time (ms)."""
        if self._lifetime is not None and self._value_written is not None and at > self._value_written + self._lifetime:
            raise NotInColumnsError


class LatestRows(PassedRows):
    """Rows of one key with `latest`: rows in time need no others. Without a value of it, all stored rows are there."""

    def __init__(self, key: bytes, known: Known, logic: OverRows, name: Any, latest: Any) -> None:
        """Take what is stored. `name` is the key as `ctx.key` has it."""
        super().__init__(key, known, logic, name, None)
        self._latest = latest
        self._latest_written: int | None = None

    def append(self, at: int, new: list[Row]) -> Sequence[EmittedRow]:
        """Put rows of one event time (ms) behind all others, and return the changes of results."""
        changed, self._latest, self._latest_written = *self._appended(at, new), at
        return [*changed.emitted()]

    def _appended(self, at: int, new: list[Row]) -> tuple[Changed, Any]:
        logic, latest = self._logic, self._latest
        if latest is None:
            known = self._known
            changed, frame, *_ = logic.inserted(known, at, new, self._name)
            self._rewrite(changed, at)
            return changed, logic.extended(known.passed, changed.after, frame)
        first = len(latest.rows)
        rows = [*latest.rows, *sorted(new, key=order_of)]
        changed = Changed(rows, logic.revised(rows, first, latest, latest.frame, self._name), first)
        self.put(at, changed.after[first:], at)
        return changed, logic.extended(latest, changed.after, latest.frame)

    def store(self, states: OverStates) -> None:
        """Set the state of the key."""
        super().store(states)
        if self._latest_written is not None:
            states.latest.set_values([self.key], [self._latest], [self._latest_written])


Reader = Callable[[Sequence[Plan], OverStates, KeyEvents], dict[bytes, KeyRows]]
"""Function that reads the passed rows of keys, which may leave some out."""


def passed_rows(logic: OverRows, ttl: StateTtl | None) -> Reader:
    """Return what reads the rows of keys as `PassedRows`."""

    def read(plans: Sequence[Plan], states: OverStates, events: KeyEvents) -> dict[bytes, KeyRows]:
        firing = [
            plan for plan in plans if plan.fired and logic.keeps_keys
        ]  # others read nothing, so nothing of them expires
        clocks = [max(plan.fired[0][0] - 1, events.before) for plan in firing]
        keys_read = [plan.key for plan in firing]
        passed = dict(zip(keys_read, states.values.values_of(keys_read, clocks), strict=True))
        latest = [None] * len(plans)
        if states.latest is not None:
            latest = states.latest.values_of([plan.key for plan in plans])
        some = zip(plans, latest, strict=True)
        rows = rows_of([plan for plan, last in some if logic.stay and plan.has_rows and last is None], states)
        rows |= settled_rows([plan for plan in plans if plan.key not in rows], states)
        keys: dict[bytes, KeyRows] = {}
        for plan, last in zip(plans, latest, strict=True):
            known, name = Known(logic.first(passed.get(plan.key)), rows[plan.key]), events.key_of(plan.key)
            if states.latest is None:
                keys[plan.key] = PassedRows(plan.key, known, logic, name, ttl)
            else:
                keys[plan.key] = LatestRows(plan.key, known, logic, name, last)
        return keys

    return read


def rows_of(plans: Sequence[Plan], states: OverStates) -> dict[bytes, dict[int, list[Row]]]:
    """Return all stored rows of keys, by event time (ms)."""
    keys = [plan.key for plan in plans]
    maps = states.rows.entries_of(keys) if keys else []
    return {key: {rows[0].at: rows for rows in stored.values()} for key, stored in zip(keys, maps, strict=True)}


def settled_rows(plans: Sequence[Plan], states: OverStates) -> dict[bytes, dict[int, list[Row]]]:
    """Return the stored rows of keys that are settled, by event time (ms)."""
    places = [(plan.key, at) for plan in plans for at in plan.settled()]
    stored = states.rows.entries_at([(key, time_text(at)) for key, at in places])
    by_key: dict[bytes, dict[int, list[Row]]] = {plan.key: {} for plan in plans}
    for (key, at), rows in zip(places, stored, strict=True):
        if rows is not None:
            by_key[key][at] = rows
    return by_key


@dataclass(frozen=True, slots=True)
class OverEvents:
    """Processes the rows and timers of many keys. `row_of` makes a row of a record and its event time (ms), `stay` is how long it stays (ms)."""

    events: KeyEvents
    states: OverStates
    row_of: Callable[[Any, int], Row]
    stay: int
    read: Reader

    def results(self) -> EventResults:
        """Set the state of all keys but those that are left, and return what else becomes of them."""
        results = EventResults({*self.events.keys})
        plans = [*_working(self._plan, self.events.keys)]
        stored = self._stored(plans)
        known = self.read(plans, self.states, self.events)
        for plan, rows, emitted in _working(lambda plan: self._fired(plan, known.get(plan.key), stored), plans):
            self._store(plan, rows)
            results.left.remove(plan.key)
            results.emitted += emitted
            results.registered += [(plan.key, timer) for timer in plan.registered]
            results.first += [(plan.key, timer) for timer in plan.first]
            results.unregistered += len(plan.fired) - len(plan.stored)
        return results

    def _plan(self, key: bytes) -> Plan:
        """Return what happens to a key. Raises the errors of `row_of`."""
        watermark, stay, row_of = self.events.watermark, self.stay, self.row_of
        rows: dict[int, list[Row]] = {}
        stored = self.events.timers.get(key, ())
        fired, waiting, registered, first = {*stored}, [], set[KeyTimer](), list[KeyTimer]()
        for record in self.events.records.get(key, ()):
            at = record.timestamp
            row = row_of(record.record, at)
            if at > watermark:
                waiting.append((record, row))
                registered.add((at, ROW))
                if stay:
                    registered.add((at + stay, f"{SETTLE}{at}"))
            elif at in rows:
                rows[at].append(row)
            else:
                rows[at] = [row]
        for at in rows:
            waited = (at, ROW) in fired
            fired.add((at, ROW))
            timer = (at + stay, f"{SETTLE}{at}") if stay else None
            if timer is not None and at + stay <= watermark:
                fired.add(timer)
            elif timer is not None and waited:
                registered.add(timer)
            elif timer is not None:
                first.append(timer)
        return Plan(key, rows, sorted(fired), stored, waiting, sorted(registered), first)

    def _stored(self, plans: Sequence[Plan]) -> dict[tuple[bytes, int], list[Row]]:
        """Return the rows that wait in the state, and that the watermarks reach, by key and event time (ms)."""
        places = [(plan.key, at) for plan in plans for at, namespace in plan.stored if namespace == ROW]
        lists = self.states.waiting.lists_at([(key, str(at)) for key, at in places])
        return dict(zip(places, lists, strict=True))

    def _fired(
        self, plan: Plan, rows: KeyRows | None, stored: dict[tuple[bytes, int], list[Row]]
    ) -> tuple[Plan, KeyRows, list[TimerResults]]:
        """Let the timers of a key fire, and return what they emit. Raises `NotInColumnsError` for timers that are not of this function."""
        emitted: list[TimerResults] = []
        if rows is None:
            raise NotInColumnsError
        for timer in plan.fired:
            at, namespace = timer
            if namespace == ROW:
                new = plan.rows.get(at, [])
                if stored and (plan.key, at) in stored:
                    new = [*stored[plan.key, at], *new]
                if not new:
                    raise NotInColumnsError
                emitted.append((plan.key, timer, rows.append(at, new)))
            elif namespace.startswith(SETTLE):
                rows.settle(int(namespace[len(SETTLE) :]), at)
            else:
                raise NotInColumnsError
        return plan, rows, emitted

    def _store(self, plan: Plan, rows: KeyRows) -> None:
        """Set the state of a key."""
        rows.store(self.states)
        for at, namespace in plan.stored:
            if namespace == ROW:
                self.states.waiting.clear_at(plan.key, str(at))
        for record, row in plan.waiting:
            self.states.waiting.add_of(record, plan.key, str(record.timestamp), row)


def _working(function: Callable[[V], W], values: Iterable[V]) -> Iterator[W]:
    """Yield the results of a function, but where it fails: one by one it fails again, and names the record."""
    remaining = iter(values)
    while True:
        with contextlib.suppress(Exception):
            for value in remaining:
                yield function(value)
            return


def late_or_apart(columns: KeyedColumns) -> Flags | None:
    """Return for each key whether it has a late record, or one to take back; None if none has."""
    late: Flags = columns.timestamps.to_numpy() <= columns.watermarks
    return keys_with(late | retractions(columns), columns)


def columns_see(ttl: StateTtl | None, *, stays: bool) -> bool:
    """Return whether rows of many keys may be processed together with this TTL of `passed`: each row in time then writes it anew."""
    if ttl is None or not ttl.is_active:
        return True
    renews = ttl.update is UpdateType.ON_CREATE_AND_WRITE and ttl.visibility is Visibility.NEVER_RETURN_EXPIRED
    return renews and ttl.expires_by_watermark and columns_see_end(ttl) and not stays
