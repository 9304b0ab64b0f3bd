"""Interface of the controller's uses: user code per record, and the code that runs for its key before and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from types import CoroutineType
from typing import Any, Protocol, TypeAlias

from headrace.execution.record_context import RecordContext

Call: TypeAlias = "CoroutineType[Any, Any, None]"
"""A call of a coroutine function."""


class KeyedWork(Protocol):
    """One use of the controller: access to state, or calls in order of keys."""

    def call(self, context: Any, /) -> Call | None:
        """Start the user code of a record; return its coroutine, or None if it has run to its end."""
        ...

    @property
    def due(self) -> Collection[Any]:
        """Return the collection of due things, always the same object. While it is empty, `before` is not called."""
        ...

    def before(self, context: Any, /) -> RecordContext | None:
        """Return the context that must run for the key before this record, such as a due timer; None without one.

        Called again when that context is finished.
        """
        ...

    def after(self, context: Any, /) -> RecordContext | None:
        """Return the context that must run for the key right after this finished record; None without one.

        Called only for a context with something `overdue`.
        """
        ...

    def failed(self, context: Any, error: BaseException, /) -> BaseException:
        """Return the error that the task fails with when the user code of a record raised `error`, which may be no `Exception`."""
        ...


class ForeignAwaitError(Exception):
    """User code awaited something that the controller cannot resume."""


def foreign_await(call: Call) -> ForeignAwaitError:
    """Close a call that awaits something other than its own state; return the error for it."""
    line = call.cr_frame.f_lineno if call.cr_frame is not None else "?"
    file = call.cr_code.co_filename
    name = call.__qualname__
    with contextlib.suppress(Exception):  # its `finally` may await or raise in turn; the first error counts
        call.close()
    return ForeignAwaitError(
        f"{name} awaited something other than its own state in line {line} of {file}: calls to the outside, and functions of asyncio, belong in an AsyncFunction (async_wait())"
    )
