"""Declared code blocks (FLIP-425, "Faster Checkpoint Drain")."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from headrace.names import check_name

F = TypeVar("F", bound=Callable[..., Any])


class BlockTask(Protocol):
    """A task that runs user code, with the context of the record that runs now."""

    @property
    def context(self) -> Any:
        """Return the current record's context."""
        ...


class Block(Generic[F]):
    """A method declared as a code block."""

    def __init__(self, block_id: str, method: F) -> None:
        """Hold a method and the name of its block; `declare` calls this."""
        self.block_id = block_id
        self.method = method

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Refuse a use outside of a task: in a task the engine puts a bound block in the instance."""
        if instance is None:
            return self
        msg = f"block '{self.block_id}' was used outside of process() or on_timer(): there is no record here"
        raise RuntimeError(msg)


class BoundBlock:
    """A block of one function in one task: called with an answer, it continues with the current record."""

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
    """Declare a method of a process function as a code block, which `then_accept` takes.

        async def process(self, sale, ctx, /):
            self.total.value().then_accept(self.add)

        @declare("add")
        def add(self, total, sale, ctx, /):
            self.total.update((total or 0) + sale.cents)

    When a run stops, it does not wait for records that wait for an answer. It stores the record and the block id, and
    the next run reads the state and continues in the block. So a block may use only its parameters. `block_id` is
    stored, so it must never change. A block may chain further blocks.

    Raises `ValueError` for a `block_id` that is not an identifier, and `TypeError` for a method that is not a plain
    `def`.
    """
    check_name(block_id)

    def wrap(method: F) -> Block[F]:
        if inspect.iscoroutinefunction(method):
            msg = f"block '{block_id}' must be a plain def: what it awaits could not be stored; chain a further block instead"
            raise TypeError(msg)
        return Block(block_id, method)

    return wrap
