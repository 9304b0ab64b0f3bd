"""A function in one task: its states and blocks as live handles, its declarations, hints for its errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import CoroutineType
from typing import Any, Final, TypeVar

from headrace.api.batches import BundleFunction
from headrace.api.functions import (
    Block,
    BoundBlock,
    KeyedBroadcastFunction,
    KeyedFunction,
    has_timers,
    has_visit,
    input_methods,
    is_blocking,
    listed_methods,
)
from headrace.api.graph import Process
from headrace.api.states import AggregatingState, BroadcastState, ListState, MapState, ReducingState, State, ValueState
from headrace.api.ttl import StateTtl
from headrace.execution.broadcast import BroadcastInput
from headrace.execution.controller import AsyncExecutionController
from headrace.options import AsyncStateOptions
from headrace.state.accumulators import AggregatingStore, ReducingStore
from headrace.state.backend import StateBackend
from headrace.state.maps_and_lists import ListStore, MapStore
from headrace.state.store import StateStore
from headrace.state.ttl import NO_HISTORY, EntryLifetimes
from headrace.state.values import BlockingValueStore, SingleStore, ValueStore
from headrace.state.waiting_calls import StateTask

D = TypeVar("D")


def declared_states(function: KeyedFunction) -> dict[str, State]:
    """Return the states that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share a stored name, and for broadcast state that the function cannot change.
    """
    states: dict[str, State] = _declared(function, State)
    _check_unique(function, "states named", (state.name for state in states.values()))
    if not isinstance(function, KeyedBroadcastFunction):
        _check_no_broadcast(function, states.values())
    return states


def declared_blocks(function: KeyedFunction) -> dict[str, Block[Any]]:
    """Return the code blocks that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share an id.
    """
    blocks: dict[str, Block[Any]] = _declared(function, Block)
    _check_unique(function, "blocks with the id", (block.block_id for block in blocks.values()))
    return blocks


def _declared(function: object, kind: type[D]) -> dict[str, D]:
    attributes: dict[str, Any] = {}
    for cls in reversed(type(function).__mro__):
        attributes |= vars(cls)
    return {name: value for name, value in attributes.items() if isinstance(value, kind)}


def _check_no_broadcast(function: KeyedFunction, states: Iterable[State]) -> None:
    for state in states:
        if isinstance(state, BroadcastState):
            msg = (
                f"{type(function).__name__} declares broadcast state '{state.name}', which only a KeyedBroadcastFunction can "
                "change: derive from that, or declare a MapState"
            )
            raise TypeError(msg)


def _check_unique(function: object, what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            msg = f"{type(function).__name__} declares two {what} '{name}'"
            raise TypeError(msg)


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
    lifetimes: EntryLifetimes = NO_HISTORY,
    *,
    blocking: bool,
) -> StateStore:
    """Return the store of a declared state in one task. `blocking` is for a plain `def`."""
    kind = next(store for kind, store in _STORES.items() if isinstance(declared, kind))
    if blocking and kind is ValueStore:
        kind = BlockingValueStore
    declaration: Any = declared
    return kind(declaration, operator, backend, task, lifetimes, blocking=blocking)


class BoundFunction:
    """A process function whose states and blocks belong to one task.

    The function is bound in place. Its declarations stay in the class, so that the next task of this worker process can
    bind it again.
    """

    def __init__(
        self,
        operator: Process,
        backend: StateBackend,
        controller: AsyncExecutionController,
        broadcast: BroadcastInput,
        lifetimes: EntryLifetimes,
        *,
        options: AsyncStateOptions,
    ) -> None:
        """Bind the operator's function. Unless `options` are enabled, each read blocks until it is answered."""
        function = operator.function
        self.operator = operator.name
        self.is_plain = is_blocking(function)
        """True: its methods are plain functions, and state calls return the value itself."""
        self.methods = input_methods(function)
        """Names of the methods that take records, one for each input."""
        self.stores: list[StateStore] = []
        self._handles: list[tuple[Any, StateStore]] = []
        self.blocks: dict[str, BoundBlock] = {}
        self.broadcast = broadcast
        self._class = type(function).__name__
        for name, state in declared_states(function).items():
            if isinstance(state, BroadcastState):
                broadcast.bind(name, state)
                continue
            store = store_for(state, operator.name, backend, controller, lifetimes, blocking=self.is_plain)
            store.waits, store.cache_limit = options.enabled, options.cache_entries
            self.stores.append(store)
            handle = store.handle
            self._handles.append((handle, store))
            setattr(function, name, handle)
        for name, block in declared_blocks(function).items():
            bound = BoundBlock(block, function, controller)
            self.blocks[block.block_id] = bound
            setattr(function, name, bound)
        self.inputs: tuple[Callable[..., Any], ...] = tuple(getattr(function, name) for name in self.methods)
        """Methods that take records, in the order of the inputs."""
        self.visit: Callable[..., Any] | None = (
            function.visit if has_visit(function) else None  # type: ignore[attr-defined]  # only one of these has it
        )
        """Method that handles a broadcast record for one key; None without one."""
        self.bundling: BundleFunction | None = None
        """The function, if it takes bundles of records; None if it takes single records only."""
        self.on_timers: Callable[..., Any] | None = None
        """Method that takes a bundle of timers; None if the function takes single timers only."""
        self.read_by_timer: Callable[[int], str | None] = _unknown
        """Function that returns the namespace that a timer reads."""
        if isinstance(function, BundleFunction) and function.takes_bundles and not any(ttls_of(function).values()):
            self.bundling = function
            if function.takes_timers:
                self.on_timers, self.read_by_timer = function.on_timers, function.read_by_timer

    def visited_store(self, state: object) -> SingleStore:
        """Return the store behind the handle of a state whose keys a broadcast record visits.

        Raises `TypeError` for what is no handle of a state with one value for each key, `NotImplementedError` for a function without `visit`.
        """
        if self.visit is None:
            msg = f"visit_keys() calls visit(record, ctx) for each key, and {self._class} has no such method: write it"
            raise NotImplementedError(msg)
        store = next((store for handle, store in self._handles if handle is state), None)
        if not isinstance(store, SingleStore):
            msg = (
                f"visit_keys() takes a ValueState, ReducingState or AggregatingState that {self._class} declares, as in "
                f"ctx.visit_keys(self.last), not {type(state).__name__}"
            )
            raise TypeError(msg)
        return store

    def not_plain(self, returned: object) -> TypeError:
        """Return the error for a plain function that returned a value."""
        if isinstance(returned, CoroutineType):
            returned.close()
        return TypeError(
            f"{listed_methods([*self.methods, 'on_timer'])} of {self._class} are plain functions and must return nothing, not {type(returned).__name__}: "
            "emit with ctx.collect(); what wraps an 'async def' must be one itself"
        )


def on_timer_of(function: KeyedFunction) -> Callable[..., Any]:
    """Return the function that a due timer calls; it does nothing for a function without timers."""
    return function.on_timer if has_timers(function) else lambda *_: None


def ttls_of(function: KeyedFunction) -> dict[str, StateTtl | None]:
    """Return the TTL of each declared state, by name."""
    return {state.name: state.ttl for state in declared_states(function).values()}


_HINTS: Final = {
    "StateFuture": "Did you forget 'await'? A call of state, such as value(), returns a StateFuture: 'await self.n.value()' is the value.",
    "no running event loop": (
        "The code of keyed functions runs without asyncio's loop: sleep, timeouts, tasks and calls to the outside belong in an "
        "AsyncFunction, which the pipeline calls with async_wait()."
    ),
}
"""Hints by a part of the exception's text."""


def hint_at(error: BaseException) -> str:
    """Return a line for the end of an exception's traceback; empty if there is no hint."""
    text = str(error)
    return next((f"{hint}\n" for part, hint in _HINTS.items() if part in text), "")


def _unknown(_timestamp: int) -> None:
    return None
