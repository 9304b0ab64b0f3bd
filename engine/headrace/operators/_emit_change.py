"""Emit what has become of a result."""

from __future__ import annotations

from typing import Any

from headrace.api import Context, RowKind


def emit_change(ctx: Context, before: Any, after: Any, *, at: int, before_at: int | None = None) -> None:
    """Emit what has become of a result: nothing where it is the same; None is no result.

    `at` is the event time of the result (ms), `before_at` that of the one before it, if it is another. A result is taken back
    with the event time that it was emitted with, so windows downstream find it where they have put it.
    """
    before_at = at if before_at is None else before_at
    if before == after:
        return
    if before is None:
        ctx.collect(after, timestamp=at)
    elif after is None:
        ctx.collect(before, RowKind.DELETE, timestamp=before_at)
    else:
        ctx.collect(before, RowKind.UPDATE_BEFORE, timestamp=before_at)
        ctx.collect(after, RowKind.UPDATE_AFTER, timestamp=at)
