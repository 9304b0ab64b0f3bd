"""Emit the change of a result."""

from __future__ import annotations

from typing import Any

from headrace.api import Context, RowKind


def emit_change(ctx: Context, before: Any, after: Any, *, at: int) -> None:
    """Emit the change of a result from `before` to `after`: nothing if they are equal. None means no result.

    `at` is the event time of both (ms): a result is retracted with its original event time, so that windows downstream
    find it in its window.
    """
    if before == after:
        return
    if before is None:
        ctx.collect(after, timestamp=at)
    elif after is None:
        ctx.collect(before, RowKind.DELETE, timestamp=at)
    else:
        ctx.collect(before, RowKind.UPDATE_BEFORE, timestamp=at)
        ctx.collect(after, RowKind.UPDATE_AFTER, timestamp=at)
