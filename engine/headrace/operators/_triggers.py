"""Triggers: early results of windows by processing time or by number of rows (Flink: `ContinuousProcessingTimeTrigger`, `CountTrigger`)."""

from __future__ import annotations

from datetime import timedelta
from operator import add
from typing import Any

from headrace.api.options import Trigger
from headrace.api.states import ReducingState, State, ValueState
from headrace.names import counted
from headrace.operators._event_time import shown_length
from headrace.options import LONGEST

EVERY = "every "
"""Prefix of the namespace of a timer of processing time that emits an early result; the window's identifier follows."""

_MILLISECOND = timedelta(milliseconds=1)

Early = int | Trigger | None
"""When a window emits early results: a step of its own time (ms), a trigger, or only at its end."""


def every(step: timedelta, /, *, purging: bool = False) -> Trigger:
    """Return the trigger that emits a window's result so far each `step` of processing time: `early=every(timedelta(minutes=5))`.

    Steps end at multiples of `step` since 1970-01-01 00:00 UTC. The first micro-batch that begins at the end of a step,
    or later, emits the results that have changed since, before it takes in its records.

    With `purging`, a result has only the records since the one before it, and no result is corrected.

    Raises `TypeError` for a `step` that is no `timedelta`, `ValueError` unless it is from 1 ms to 36,500 days, in whole milliseconds.
    """
    given: object = step
    if not isinstance(given, timedelta):
        msg = f"every() takes a timedelta, not {step!r:.60}"
        raise TypeError(msg)
    if not _MILLISECOND <= step <= LONGEST or step % _MILLISECOND:
        msg = f"every() takes whole milliseconds, from 1 ms to 36,500 days, not {step}"
        raise ValueError(msg)
    return Trigger(step=step // _MILLISECOND, purging=purging)


def after_rows(n: int, /, *, purging: bool = False) -> Trigger:
    """Return the trigger that emits a window's result so far with each `n`-th row of the window: `early=after_rows(1000)`.

    With `purging`, a result has only the records since the one before it, and no result is corrected.

    Raises `ValueError` unless `n` is a whole number of at least 1.
    """
    given: object = n
    if not isinstance(given, int) or isinstance(given, bool) or n < 1:
        msg = f"after_rows() takes a whole number of at least 1, not {n!r:.60}"
        raise ValueError(msg)
    return Trigger(rows=n, purging=purging)


def purges(early: Early) -> bool:
    """Return whether each result has only the records since the one before it."""
    return isinstance(early, Trigger) and early.purging


def shown_early(early: int | Trigger) -> timedelta | str:
    """Return when early results are emitted, for people."""
    if not isinstance(early, Trigger):
        return timedelta(milliseconds=early)
    when = (
        f"after {counted(early.rows, 'row')}"
        if early.rows is not None
        else f"every {shown_length(early.step or 0)} of processing time"
    )
    return f"{when}, of the records since the last one" if early.purging else when


def end_of_step(step: int, now: int) -> int:
    """Return the first end of a step of processing time after `now` (ms)."""
    return now - now % step + step


def early_states(name: str, early: Early, result_type: Any) -> dict[str, State]:
    """Return the states of early results by attribute: `emitted` for those that are corrected, `rows` for rows since the last one.

    Names of the states begin with `name`.
    """
    states: dict[str, State] = {}
    if early is not None and not purges(early):
        states["emitted"] = ValueState(f"{name}_emitted", result_type)
    if rows_of(early) is not None:
        states["rows"] = ReducingState(f"{name}_rows", int, add)
    return states


async def has_enough_rows(rows: ReducingState[int], enough: int) -> bool:
    """Count a row in the state `rows` of a window, and return whether there are `enough` for a result; if so, count from 0 again."""
    if (await rows.get() or 0) + 1 >= enough:
        await rows.clear()
        return True
    await rows.add(1)
    return False


def rows_of(early: Early) -> int | None:
    """Return the number of rows after which a result is emitted; None unless rows are counted."""
    return early.rows if isinstance(early, Trigger) else None
