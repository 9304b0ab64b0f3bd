"""Which store serves which kind of declared state."""

from __future__ import annotations

from typing import Any

from headrace.api import AggregatingState, ListState, MapState, ReducingState, ValueState
from headrace.api._state import State
from headrace.state.accumulator_store import AggregatingStore, ReducingStore
from headrace.state.backend import StateBackend
from headrace.state.list_store import ListStore
from headrace.state.map_store import MapStore
from headrace.state.state_store import StateStore, StateTask
from headrace.state.ttl import NO_HISTORY, Lives
from headrace.state.value_store import BlockingValueStore, ValueStore

_KINDS: dict[type[State], type[StateStore]] = {
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
    lives: Lives = NO_HISTORY,
    *,
    blocking: bool,
) -> StateStore:
    """The store of a declared state in one task. `blocking` is for a plain `def`."""
    kind = next(store for kind, store in _KINDS.items() if isinstance(declared, kind))
    if blocking and kind is ValueStore:
        kind = BlockingValueStore
    found: Any = declared
    return kind(found, operator, backend, task, lives, blocking=blocking)
