"""Binds a process function to one task: its declared states and blocks become live handles."""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from headrace.api import BroadcastState, Process, StateTtl
from headrace.api.blocks import BoundBlock
from headrace.api.bundles import BundleFunction
from headrace.api.functions import KeyedFunction, has_timers, input_methods, is_blocking, listed_methods
from headrace.execution.broadcast_input import BroadcastInput
from headrace.execution.controller import AsyncExecutionController
from headrace.execution.declarations import declared_blocks, declared_states
from headrace.execution.options import AsyncStateOptions
from headrace.state.backend import StateBackend
from headrace.state.state_store import StateStore
from headrace.state.stores import store_for
from headrace.state.ttl import EntryLifetimes


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
        lives: EntryLifetimes,
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
        self.blocks: dict[str, BoundBlock] = {}
        self.broadcast = broadcast
        self._class = type(function).__name__
        for name, state in declared_states(function).items():
            if isinstance(state, BroadcastState):
                broadcast.bind(name, state)
                continue
            store = store_for(state, operator.name, backend, controller, lives, blocking=self.is_plain)
            store.waits, store.cache_limit = options.enabled, options.cache_entries
            self.stores.append(store)
            setattr(function, name, store.handle)
        for name, block in declared_blocks(function).items():
            bound = BoundBlock(block, function, controller)
            self.blocks[block.block_id] = bound
            setattr(function, name, bound)
        self.inputs: tuple[Callable[..., Any], ...] = tuple(getattr(function, name) for name in self.methods)
        """Methods that take records, in the order of the inputs."""
        self.bundling: BundleFunction | None = None
        """The function, if it takes bundles of records; None if it takes single records only."""
        self.on_timers: Callable[..., Any] | None = None
        """Method that takes a bundle of timers; None if the function takes single timers only."""
        if isinstance(function, BundleFunction) and function.takes_bundles and not any(ttls_of(function).values()):
            self.bundling = function
            if function.takes_timers:
                self.on_timers = function.on_timers

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
