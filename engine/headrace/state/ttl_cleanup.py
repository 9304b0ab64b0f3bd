"""Removes expired entries that nothing reads (FLIP-25, "Additional Cleanup Strategies"), at the end of a task.

User code's view does not depend on it, so it runs once, over the stored entries and the changes: an entry that was
renewed meanwhile is known to be alive, whatever is stored.

*Incremental* cleanup checks the next entries in the local backend, and starts over at the end. It is cheap because it
checks many entries at once, not some after each record. The delta backend has no entries of its own: there, compaction
cleans the tables, and an earlier removal would only add a row to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.api import StateTtl
from headrace.state.backend import StateBackend, Write
from headrace.state.entry import EntryChange, unpack_header
from headrace.state.exact_cleanup import ExactCleanup, group_of_timer, removal
from headrace.state.state_store import StateStore
from headrace.state.timer_service import TimerService
from headrace.state.ttl import TtlMoment


class TtlCleanup:
    """Cleanup of one operator's states in one task."""

    def __init__(
        self,
        declared: Mapping[str, StateTtl | None],
        stores: Sequence[StateStore],
        backend: StateBackend,
        timers: TimerService,
    ) -> None:
        """Take the parts; `declared` has the TTL of each state, by name."""
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

    def on_timer(self, _: int, context: Any) -> None:
        """Accept a cleanup timer that fired. It runs no user code: its group is checked at the end."""
        group = group_of_timer(context.timer)
        if group.state in self._exact:  # otherwise exact cleanup was switched off, and this was its last timer
            self._exact[group.state].fired.add(group)

    def changes(self, moment: TtlMoment, records: int) -> list[tuple[StateStore, list[EntryChange]]]:
        """Return the changes of each store, and the removals of entries expired by `moment`; call it once.

        `records` is the number of records that the task processed.
        """
        changes_by_store: list[tuple[StateStore, list[EntryChange]]] = []
        swept = self._expired(moment, records)
        for store in self._stores:
            changes = list(store.changes(last=True))
            exact, live = self._exact.get(store.name), store.ttl_logic
            if exact is not None and live is not None:
                changes = list(exact.changes(changes, live.clock(moment)))
            if entries := swept.get(store.name):
                touched = {change.entry(store.name) for change in changes}
                removals = [removal(entry) for entry in entries if entry not in touched]
                self._swept += len(removals)
                changes += removals
            changes_by_store.append((store, changes))
        return changes_by_store

    def writes(self) -> Iterator[Write]:
        """Yield the backend's further writes, which no table has."""
        for exact in self._exact.values():
            yield from exact.writes()

    def _expired(self, moment: TtlMoment, records: int) -> dict[str, list[bytes]]:
        """Return the expired ones of the next entries, by state."""
        budget = self._budget(records)
        expired: dict[str, list[bytes]] = {}
        if not budget:
            return expired
        ages = {
            store.name.encode(): store.ttl_logic.age(store.ttl_logic.clock(moment))
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
