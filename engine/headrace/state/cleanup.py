"""Removal of expired entries that nothing reads, during a task and at its end (FLIP-25).

User code's view does not depend on the cleanup at the end, so it runs once, over the stored entries and the changes: an entry that was
renewed meanwhile is known to be alive, whatever is stored.

*Incremental* cleanup checks the next entries in the local backend, and starts over at the end. It is cheap because it
checks many entries at once, not some after each record. The delta backend has no entries of its own: there, compaction
cleans the tables, and an earlier removal would only add a row to them.

Exact cleanup by timers (FLIP-25): an expired entry is removed in the micro-batch in which it expires.

There is one timer for each entry group (state, key, namespace). When it fires, expired entries are removed, and the
timer is set again for the entry that expires next. Renewing an entry moves no timer: it fires, finds the entry alive,
and waits again.

    ttl 16      0            15  16                31
                written        read  timer: alive      timer: expired, removed

The timer service knows when a timer fires; an entry of the backend says which timer a group has:

    x <state> 00 <key> 00 <namespace>  ->  when it fires (ms)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.api.ttl import StateTtl
from headrace.state.backend import (
    EntryChange,
    StateBackend,
    Write,
    end_of_group,
    entry_group,
    named,
    unpack_header,
    unpacked,
    value_entry,
)
from headrace.state.spilled_changes import SpilledChanges
from headrace.state.store import StateStore
from headrace.state.timers import EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP, Timer, TimerService
from headrace.state.ttl import AccessTimes, LiveTtl

CLEANUP_PREFIX = b"x"
"""First byte of the entries."""

CLEANUP_DOMAINS = (EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP)
_TIME = struct.Struct(">q")
_SLASH = "/"  # this byte never occurs in a state's name

StoredPairs = list[tuple[bytes, bytes]]
"""Entries with their stored values."""


class EntryGroup(NamedTuple):
    """All entries of a state for a key in a namespace."""

    state: str
    key_json: bytes
    namespace: str = ""

    @property
    def entry(self) -> bytes:
        """Return the entry that says when its timer fires."""
        return b"%b%b\x00%b\x00%b" % (CLEANUP_PREFIX, self.state.encode(), self.key_json, self.namespace.encode())

    def timer(self, time: int, domain: str) -> Timer:
        """Return its timer."""
        namespace = f"{self.state}{_SLASH}{self.namespace}" if self.namespace else self.state
        return Timer(time, self.key_json, domain, namespace)


def group_of_timer(timer: Timer) -> EntryGroup:
    """Return the group of a cleanup timer."""
    state, _, namespace = timer.namespace.partition(_SLASH)
    return EntryGroup(state, timer.key_json, namespace)


def key_of(entry: bytes) -> bytes:
    """Return the key of an `EntryGroup.entry`."""
    return entry.split(b"\x00")[1]


def stored_time(time: int | None) -> bytes | None:
    """Return the value of an `EntryGroup.entry`."""
    return None if time is None else _TIME.pack(time)


def time_of(stored: bytes | None) -> int | None:
    """Return when a timer fires (ms), from the value of an `EntryGroup.entry`."""
    if stored is None:
        return None
    (time,) = _TIME.unpack(stored)
    return int(time)


def known_timers(timers: Iterable[Timer]) -> Iterator[Write]:
    """Yield the entries for the cleanup timers among all registered ones."""
    for timer in timers:
        if timer.domain in CLEANUP_DOMAINS:
            yield group_of_timer(timer).entry, stored_time(timer.timestamp)


class ExactCleanup:
    """Cleanup of one state in one task. `fired` are the groups whose timers fired."""

    def __init__(self, state: str, live: LiveTtl, backend: StateBackend, timers: TimerService) -> None:
        """Start with no fired timers."""
        self.fired: set[EntryGroup] = set()
        self.removed = 0
        """Number of entries removed so far."""
        self._state = state
        self._live = live
        self._backend = backend
        self._timers = timers
        self._domain = EVENT_TIME_CLEANUP if live.by_watermark else PROCESSING_TIME_CLEANUP
        self._set: dict[EntryGroup, int | None] = {}

    def changes(self, task_changes: Iterable[EntryChange], clock: int) -> Iterator[EntryChange]:
        """Yield the task's changes without entries expired by `clock`, and the removals of expired entries; set the timers."""
        groups: dict[EntryGroup, dict[bytes, EntryChange]] = {group: {} for group in self.fired}
        for change in task_changes:
            group = EntryGroup(self._state, change.key_json, change.namespace)
            groups.setdefault(group, {})[change.entry(self._state)] = change
        known = self._known([group for group in groups if group not in self.fired])
        stored = self._stored(self.fired)
        for group, changed in groups.items():
            deaths: list[int] = []
            yield from self._changed(changed.values(), clock, deaths)
            yield from self._untouched(stored.get(group, []), changed, clock, deaths)
            self._set_timer(group, known.get(group), min(deaths, default=None), list(changed.values()))

    def writes(self) -> Iterator[Write]:
        """Yield the backend's entries for the timers that were set."""
        for group, time in self._set.items():
            yield group.entry, stored_time(time)

    def _changed(self, changes: Iterable[EntryChange], clock: int, deaths: list[int]) -> Iterator[EntryChange]:
        for change in changes:
            if change.raw is None:
                yield change
            elif self._live.is_dead_at(clock, change.stamp, change.own_ttl):
                self.removed += 1
                yield change._replace(raw=None)
            else:
                deaths.append(self._live.expires_at(change.stamp, change.own_ttl))
                yield change

    def _untouched(
        self, stored: StoredPairs, changed: dict[bytes, EntryChange], clock: int, deaths: list[int]
    ) -> Iterator[EntryChange]:
        for entry, value in stored:
            if entry in changed:
                continue
            stamp, own_ttl, _ = unpacked(value)
            if self._live.is_dead_at(clock, stamp, own_ttl):
                self.removed += 1
                yield removal(entry)
            else:
                deaths.append(self._live.expires_at(stamp, own_ttl))

    def _set_timer(
        self, group: EntryGroup, before: int | None, next_death: int | None, changes: Sequence[EntryChange]
    ) -> None:
        """Set the group's timer no later than its next expiry; an empty group needs no timer."""
        after = next_death
        if group not in self.fired and before is not None:
            is_gone = next_death is None and changes[0].user_key is None
            after = None if is_gone else min(before, before if next_death is None else next_death)
        if after == before and group not in self.fired:
            return
        if before is not None:
            self._timers.delete(group.timer(before, self._domain))
        if after is not None:
            self._timers.register(group.timer(after, self._domain))
        self._set[group] = after

    def _known(self, groups: Sequence[EntryGroup]) -> dict[EntryGroup, int | None]:
        """Return when the timers of groups fire (ms)."""
        times = self._backend.get_many([group.entry for group in groups])
        return {group: time_of(stored) for group, stored in zip(groups, times, strict=True)}

    def _stored(self, groups: Iterable[EntryGroup]) -> dict[EntryGroup, StoredPairs]:
        """Return all stored entries of groups."""
        singles = {value_entry(*group): group for group in groups}
        pairs: dict[EntryGroup, StoredPairs] = {}
        for (entry, group), value in zip(singles.items(), self._backend.get_many(list(singles)), strict=True):
            prefix = entry_group(*group)
            pairs[group] = [] if value is None else [(entry, value)]
            pairs[group] += self._backend.scan(prefix, end_of_group(prefix))
        return pairs


def removal(entry: bytes) -> EntryChange:
    """Return the change that removes an entry."""
    _, key_json, namespace, user_key = named(entry)
    return EntryChange(key_json, None, 0, 0, namespace, user_key)


class TtlCleanup:
    """Cleanup of one operator's states in one task."""

    def __init__(
        self,
        declared: Mapping[str, StateTtl | None],
        stores: Sequence[StateStore],
        backend: StateBackend,
        timers: TimerService,
        spilled: SpilledChanges | None = None,
    ) -> None:
        """Take the parts; `declared` has the TTL of each state, by name."""
        self._spilled = spilled
        self._stores = stores
        self._backend = backend
        self._policies = {name: ttl.cleanup for name, ttl in declared.items() if ttl is not None and ttl.is_active}
        self._exact = {
            store.name: ExactCleanup(store.name, store.ttl_logic, backend, timers)
            for store in stores
            if store.ttl_logic is not None and self._policies[store.name].exact
        }
        self._swept = 0

    @property
    def removed(self) -> int:
        """Return the number of entries removed so far, except those that a read found."""
        return self._swept + sum(exact.removed for exact in self._exact.values())

    def needs_all_changes(self, store: StateStore) -> bool:
        """Return whether all changes of a store must be there together when the task ends: its entries are removed exactly."""
        return store.name in self._exact

    def on_timer(self, _: int, context: Any) -> None:
        """Accept a cleanup timer that fired. It runs no user code: its group is checked at the end."""
        group = group_of_timer(context.timer)
        if group.state in self._exact:  # otherwise exact cleanup was switched off, and this was its last timer
            self._exact[group.state].fired.add(group)

    def changes(self, access: AccessTimes, records: int) -> list[tuple[StateStore, list[EntryChange]]]:
        """Return the changes of each store, and the removals of entries expired by `access`; call it once.

        `records` is the number of records that the task processed.
        """
        changes_by_store: list[tuple[StateStore, list[EntryChange]]] = []
        swept = self._expired(access, records)
        for store in self._stores:
            changes = list(store.changes(last=True))
            exact, live = self._exact.get(store.name), store.ttl_logic
            if exact is not None and live is not None:
                changes = list(exact.changes(changes, live.clock(access)))
            if entries := swept.get(store.name):
                touched = {change.entry(store.name) for change in changes}
                if self._spilled is not None:
                    touched |= self._spilled.marked(entries)
                removals = [removal(entry) for entry in entries if entry not in touched]
                self._swept += len(removals)
                changes += removals
            changes_by_store.append((store, changes))
        return changes_by_store

    def writes(self) -> Iterator[Write]:
        """Yield the backend's further writes, which no table has."""
        for exact in self._exact.values():
            yield from exact.writes()

    def _expired(self, access: AccessTimes, records: int) -> dict[str, list[bytes]]:
        """Return the expired ones of the next entries, by state."""
        budget = self._budget(records)
        expired: dict[str, list[bytes]] = {}
        if not budget:
            return expired
        ages = {
            store.name.encode(): store.ttl_logic.age(store.ttl_logic.clock(access))
            for store in self._stores
            if store.ttl_logic is not None
        }
        youngest = max(age.youngest for age in ages.values())
        for entry, stored in self._backend.visit(budget):
            stamp, own_ttl = unpack_header(stored)
            if stamp > youngest and not own_ttl:
                continue  # alive, whatever its state: most entries cost no more than this
            state = entry[1 : entry.index(0)]
            age = ages.get(state)
            if age is not None and age.is_dead(stamp, own_ttl):
                expired.setdefault(state.decode(), []).append(entry)
        return expired

    def _budget(self, records: int) -> int:
        accesses = {store.name: store.hits + store.misses for store in self._stores}
        return sum(
            records * policy.entries_per_record + accesses[name] * policy.entries_per_access
            for name, policy in self._policies.items()
        )
