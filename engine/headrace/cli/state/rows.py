"""Reports on rows of state, with their checkpoint and their number."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.names import counted
from headrace.report import Block, Drawing, Fact, Report, facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.readers.job_at import JobAtCheckpoint
    from headrace.readers.query import Rows


def of_rows(
    job: JobAtCheckpoint,
    rows: Rows,
    what: str,
    *more: Block | None,
    shown: Rows | None = None,
    total: int | None = None,
    timers_left_out: int | None = None,
    spare: Sequence[str] = (),
) -> Report:
    """Return the report on rows: their checkpoint, their number, and that of the engine's own timers that were left out.

    People read the rows `shown`, by default all, on a narrow terminal without the columns in `spare`. `total` is the number of rows without a limit; if it is None, there is no limit.
    """
    from headrace.cli.output import typed_rows

    return Report(
        *facts(checkpoint=job.checkpoint.checkpoint_id, **{what: typed_rows(rows)}),
        None if total is None else Fact("total", total),
        None if timers_left_out is None else Fact("timers_left_out", timers_left_out),
        _for_people(rows if shown is None else shown, spare),
        *_numbers(job, len(rows.rows), what, total, timers_left_out),
        *more,
    )


def _for_people(rows: Rows, spare: Sequence[str]) -> Block:
    """Return rows as a table; with a long column, as one block of lines each."""
    from headrace.cli.output import card_lines, rows_table

    body = next((name for name in ("value", "raw") if name in rows.columns), None)
    if body is None or not rows.rows:
        return rows_table(rows, drop=("key_group",), spare=spare)
    return Drawing(partial(card_lines, rows, body, drop=("key_group",)))


def _numbers(
    job: JobAtCheckpoint, number: int, what: str, total: int | None, timers_left_out: int | None
) -> Iterator[str]:
    """Yield sentences on the numbers of rows."""
    more = total is not None and total > number
    listed = f"{number:,} of {total:,} {what}" if more else counted(number, _SINGULAR.get(what, what), what)
    yield f"{listed}, at checkpoint {job.checkpoint.checkpoint_id}{' (more with -n)' if more else ''}"
    if timers_left_out:
        timers, them = counted(timers_left_out, "timer"), "it" if timers_left_out == 1 else "them"
        yield f"left out: {timers} that Headrace sets to clean up; --all shows {them}"


_SINGULAR = {"states": "state", "entries": "entry", "changes": "change", "timers": "timer", "requests": "request"}


def total_of(rows: Rows, limit: int, count: Callable[[], int]) -> int:
    """Return the number of rows without a limit. Counts only if the limit may have cut some off: that reads the table again."""
    return len(rows.rows) if len(rows.rows) < limit else count()
