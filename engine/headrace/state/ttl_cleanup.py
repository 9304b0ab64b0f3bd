"""Removes expired entries that nobody looks at (FLIP-25, "Additional Cleanup Strategies"), when a task has done its work.

What user code may see does not depend on it, so it runs once, over what is stored and what has changed: an entry that was
renewed meanwhile is known to be alive, whatever is stored of it.

*Incremental* cleanup looks at the entries that come next in the local backend, and starts over at the end. It is one look at
many entries, not one after each record: that is what makes it cheap. The delta backend has no entries of its own: there, the
tables are cleaned up by compaction, and a removal before that would only add a row to them.
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
    """The cleanup of one operator's states in one task."""

    def __init__(
        self,
        declared: Mapping[str, StateTtl | None],
        stores: Sequence[StateStore],
        backend: StateBackend,
        timers: TimerService,
    ) -> None:
        """`declared` has the TTL of each state, by name."""
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
        """Entries removed so far, but for those that a read has found."""
        return self._swept + sum(exact.removed for exact in self._exact.values())

    def on_timer(self, _: int, context: Any) -> None:
        """A cleanup timer has fired. Nobody's code runs: its group is looked at in the end."""
        group = group_of_timer(context.timer)
        if group.state in self._exact:  # else exact cleanup was switched off, and this was its last timer
            self._exact[group.state].fired.add(group)

    def changes(self, moment: TtlMoment, records: int) -> list[tuple[StateStore, list[EntryChange]]]:
        """What each store has changed, and the removal of what has expired by `moment`; to be asked once.

        `records` is how many the task has taken in.
        """
        found: list[tuple[StateStore, list[EntryChange]]] = []
        swept = self._expired(moment, records)
        for store in self._stores:
            changes = list(store.changes())
            exact, live = self._exact.get(store.name), store.ttl_logic
            if exact is not None and live is not None:
                changes = list(exact.changes(changes, live.clock(moment)))
            if entries := swept.get(store.name):
                touched = {change.entry(store.name) for change in changes}
                removals = [removal(entry) for entry in entries if entry not in touched]
                self._swept += len(removals)
                changes += removals
            found.append((store, changes))
        return found

    def writes(self) -> Iterator[Write]:
        """What the backend has to know beyond the changes, which no table has."""
        for exact in self._exact.values():
            yield from exact.writes()

    def _expired(self, moment: TtlMoment, records: int) -> dict[str, list[bytes]]:
        """The expired ones of the entries that come next, by state."""
        budget = self._budget(records)
        found: dict[str, list[bytes]] = {}
        if not budget:
            return found
        ages = {
            store.name.encode(): store.ttl_logic.age(store.ttl_logic.clock(moment))
            for store in self._stores
            if store.ttl_logic is not None
        }
        youngest = max(age.youngest for age in ages.values())
        for entry, stored in self._backend.visit(budget):
            stamp, own_ttl = unpack_header(stored)
            if stamp > youngest and not own_ttl:
                continue  # alive, whatever state it is of: most entries cost no more than this
            state = entry[1 : entry.index(0)]
            age = ages.get(state)
            if age is not None and age.is_dead(stamp, own_ttl):
                found.setdefault(state.decode(), []).append(entry)
        return found

    def _budget(self, records: int) -> int:
        accesses = {store.name: store.hits + store.misses for store in self._stores}
        return sum(
            records * policy.entries_per_record + accesses[name] * policy.entries_per_access
            for name, policy in self._policies.items()
        )
