"""The work that a controller is used for: user code per record, and what runs for its key before and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from types import CoroutineType
from typing import Any, Protocol, TypeAlias

from headrace.execution.record_context import RecordContext

Call: TypeAlias = "CoroutineType[Any, Any, None]"
"""A call of a coroutine function."""


class KeyedWork(Protocol):
    """One use of the controller: access to state, or look-ups in order of keys."""

    def call(self, context: Any, /) -> Call | None:
        """Start the user code of a record: its coroutine, or None if it has run to its end."""
        ...

    @property
    def due(self) -> Collection[Any]:
        """Always the same collection. Empty while nothing is due for any key, so that `before` need not be asked."""
        ...

    def before(self, context: Any, /) -> RecordContext | None:
        """Return what has to run for the key before this record does, such as a timer that is due; None once nothing has.

        Asked again when that is finished.
        """
        ...

    def after(self, context: Any, /) -> RecordContext | None:
        """Return what has to run for the key right after this record, which is finished; None if nothing has.

        Asked only of a context that has something `overdue`.
        """
        ...

    def failed(self, context: Any, error: Exception, /) -> Exception:
        """Return the error that the task fails with when the user code of a record raised `error`."""
        ...


class ForeignAwaitError(Exception):
    """User code awaited something that the controller cannot resume."""


def foreign_await(call: Call) -> ForeignAwaitError:
    """Close a call that awaits something else than its own state; return the error for it."""
    line = call.cr_frame.f_lineno if call.cr_frame is not None else "?"
    name = call.__qualname__
    with contextlib.suppress(Exception):  # its `finally` may await or raise in turn; what matters comes first
        call.close()
    return ForeignAwaitError(
        f"{name} awaited something other than its own state in line {line}: calls to the outside belong in async_wait()"
    )
