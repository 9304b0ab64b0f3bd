"""Declared code blocks (FLIP-425, "Faster Checkpoint Drain")."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from headrace.names import check_name

F = TypeVar("F", bound=Callable[..., Any])


class BlockTask(Protocol):
    """Who runs user code: `context` is that of the code that runs now."""

    @property
    def context(self) -> Any:
        """The current record's context."""
        ...


class Block(Generic[F]):
    """A method that was declared as a code block."""

    def __init__(self, block_id: str, method: F) -> None:
        """Hold a method and the name of its block; `declare` makes it."""
        self.block_id = block_id
        self.method = method

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Refuse a use outside of a task: the engine puts a bound block in the instance."""
        if instance is None:
            return self
        msg = f"block '{self.block_id}' was used outside of process() or on_timer(): there is no record here"
        raise RuntimeError(msg)


class BoundBlock:
    """A block of one function in one task: called with an answer, it goes on with the record at hand."""

    __slots__ = ("_function", "_method", "_task", "block_id")

    def __init__(self, block: Block[Any], function: object, task: BlockTask) -> None:
        """Bind a block."""
        self.block_id = block.block_id
        self._method = block.method
        self._function = function
        self._task = task

    def __call__(self, answer: Any, /) -> Any:
        """Run the block."""
        context = self._task.context
        return self._method(self._function, answer, context.record, context)


def declare(block_id: str, /) -> Callable[[F], Block[F]]:
    """Declare a method of a process function as a code block, to be given to `then_accept`.

        async def process(self, sale, ctx, /):
            self.total.value().then_accept(self.add)

        @declare("add")
        def add(self, total, sale, ctx, /):
            self.total.update((total or 0) + sale.cents)

    When a run has to stop, a record that waits for the answer is not waited for: record and block id are stored, and the next
    run reads the state and goes on in the block. So a block may use nothing but its parameters. `block_id` is stored, must stay
    the same, and is an identifier, else `ValueError`; a block is a plain function that may chain further blocks, else
    `TypeError`.
    """
    check_name(block_id)

    def wrap(method: F) -> Block[F]:
        if inspect.iscoroutinefunction(method):
            msg = f"block '{block_id}' must be a plain def: what it awaits could not be stored; chain a further block instead"
            raise TypeError(msg)
        return Block(block_id, method)

    return wrap
