"""Stores by kind of declared state."""

from __future__ import annotations

from typing import Any

from headrace.api import AggregatingState, ListState, MapState, ReducingState, ValueState
from headrace.api.states import State
from headrace.state.accumulator_store import AggregatingStore, ReducingStore
from headrace.state.backend import StateBackend
from headrace.state.list_store import ListStore
from headrace.state.map_store import MapStore
from headrace.state.state_store import StateStore
from headrace.state.state_task import StateTask
from headrace.state.ttl import NO_HISTORY, EntryLifetimes
from headrace.state.value_store import BlockingValueStore, ValueStore

_STORES: dict[type[State], type[StateStore]] = {
    ValueState: ValueStore,
    ListState: ListStore,
    MapState: MapStore,
    ReducingState: ReducingStore,
    AggregatingState: AggregatingStore,
}


def store_for(
    declared: State,
    operator: str,
    backend: StateBackend,
    task: StateTask,
    lives: EntryLifetimes = NO_HISTORY,
    *,
    blocking: bool,
) -> StateStore:
    """Return the store of a declared state in one task. `blocking` is for a plain `def`."""
    kind = next(store for kind, store in _STORES.items() if isinstance(declared, kind))
    if blocking and kind is ValueStore:
        kind = BlockingValueStore
    declaration: Any = declared
    return kind(declaration, operator, backend, task, lives, blocking=blocking)
