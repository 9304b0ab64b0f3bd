"""Emit what has become of a result."""

from __future__ import annotations

from typing import Any

from headrace.api import Context, RowKind


def emit_change(ctx: Context, before: Any, after: Any, *, at: int) -> None:
    """Emit what has become of a result: nothing where it is the same; None is no result.

    `at` is the event time of both (ms): a result is taken back with the time that it was emitted with, so windows downstream find it
    where they have put it.
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
