"""`headrace sql`, `views`, `waiting` and `quarantine`: lists of what a job stores; input leaves the quarantine by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

from headrace.cli.arguments import (
    All,
    Apply,
    AsOf,
    At,
    Branch,
    Job,
    JobOrText,
    Limit,
    OperatorOption,
    RunId,
    WithExpired,
    job_and_text,
    load,
    new_run_id,
    open_job,
)
from headrace.cli.proposal import Proposal, Shown, corrected
from headrace.cli.state.rows import of_rows, total_of
from headrace.names import counted
from headrace.report import Drawing, Facts, Report, Stored, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.edits.requeue import QuarantinedRow
    from headrace.log.checkpoint import Checkpoint
    from headrace.readers.job_at import JobAtCheckpoint


Second = Annotated[Optional[str], typer.Argument(metavar="QUERY", help="One query, in quotes.", show_default=False)]  # noqa: UP045


def register_reads(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("sql")(sql)
    app.command("views")(views)


def sql(
    first: JobOrText,
    second: Second = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    with_expired: WithExpired = False,
    branch: Branch = None,
) -> Report:
    """Query the state tables, in DuckDB's SQL. The query sees only these views.

    Live entries: keyed_state, timers, buffered_requests, async_requests, materializer_history,
    quarantine, and responses where a service keeps them. Changes since the last compaction: the same names with _changelog.
    Also checkpoints, and the sinks by name, as they were at the checkpoint. Columns need no quotes,
    even if SQL reserves the word (at, end).

    Example:  headrace sql flights "select state, count(*) from keyed_state group by 1"

    Exit codes: 0; 2 for an unknown job or checkpoint, or a query that fails; 8 files gone.
    """
    from headrace.cli.output import rows_table, typed_rows
    from headrace.readers.sql import ask_sql

    name, query = job_and_text(first, second)
    job = open_job(name, at, as_of, branch=branch, with_expired=with_expired)
    rows = ask_sql(job, query)
    return Report(
        *facts(checkpoint=job.checkpoint.checkpoint_id, columns=rows.columns),
        Facts(lambda: {"rows": typed_rows(rows)}),
        rows_table(rows, keep_empty=True) if rows.rows else "no rows",
    )


def views(
    job: Job = None,
    *,
    engine: Annotated[str, typer.Option("--for", metavar="ENGINE", help="duckdb, polars or spark.")] = "duckdb",
    table: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--table", metavar="NAME", help="Only this state table, such as keyed_state. May be repeated."),
    ] = None,
    at: At = None,
    as_of: AsOf = None,
    with_expired: WithExpired = False,
    branch: Branch = None,
) -> Report:
    """Print views of live entries, without deleted and expired ones, for DuckDB, Polars (Python) or Spark with Delta Lake.

    The text names the files or versions of one checkpoint, and the times of its TTLs. It stays right as long as retention
    keeps the checkpoint's files. Each view has the name of its table: keyed_state, timers, materializer_history and others.

    Example:  headrace views flights > live.sql

    Example:  headrace views flights --for spark --table keyed_state --at 12

    Exit codes: 0; 2 for an unknown job, checkpoint, engine or table; 8 when its files are gone.
    """
    from headrace.errors import ConfigError
    from headrace.readers.sql import DIALECTS, live_views, table_names

    opened = open_job(job, at, as_of, branch=branch, with_expired=with_expired)
    for word, known, what in [
        (engine, [*DIALECTS], "engine"),
        *((name, table_names(opened), "table") for name in table or ()),
    ]:
        if word not in known:
            msg = f"there is no {what} '{word}' (known: {', '.join(known)})"
            raise ConfigError(msg)
    text = live_views(opened, DIALECTS[engine], table or ())
    return Report(
        *facts(**{"checkpoint": opened.checkpoint.checkpoint_id, "for": engine, "text": text}),
        Drawing(lambda _: [text]),
    )


def register_waiting(app: typer.Typer) -> None:
    """Add the command."""
    app.command("waiting")(waiting)


def waiting(
    job: Job = None,
    *,
    calls: Annotated[bool, typer.Option("--calls", help="List the calls that wait for a service.")] = False,
    held: Annotated[
        bool, typer.Option("--held", help="List all input that is not done: calls, and records that are held.")
    ] = False,
    of_timers: Annotated[bool, typer.Option("--timers", help="List the timers.")] = False,
    operator: OperatorOption = None,
    key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--key", metavar="KEY", help="Only what waits for this key, as plain text or JSON."),
    ] = None,
    at: At = None,
    as_of: AsOf = None,
    limit: Limit = 50,
    show_all: All = False,
    branch: Branch = None,
) -> Report:
    """Show all that waits, by operator: calls to services, answers that wait for those before them, records that are held, timers. Each can be listed.

    Between runs nothing is called and no timer fires: the next run does what is due.

    --calls lists the elements that wait for a service, the next attempt first: since when, calls, last error. In ordered mode, records
    behind one are held as well: --held. It lists all input that is not done, by its status: `pending`, no call has failed; `waiting for
    retry`; `completed`, it has its results and waits for an earlier one; `held`, it waits in front of a keyed operator. --timers lists
    the timers of both clocks, the next one first; those that clean up expired entries are counted, and listed with --all.

    Example:  headrace waiting flights

    Example:  headrace waiting flights --calls -n 10

    Example:  headrace waiting flights --timers --key N14228

    Exit codes: 0; 2 for an unknown job, checkpoint or operator, or several lists at once; 8 when its files are gone.
    """
    from headrace.cli.output import rows_table, typed_rows
    from headrace.readers.waiting import count_waiting

    if calls + held + of_timers > 1:
        msg = "--calls, --held and --timers are three lists: name one of them"
        raise typer.BadParameter(msg)
    opened = open_job(job, at, as_of, branch=branch)
    if calls:
        return _calls(opened, operator, key, limit)
    if held:
        return _held(opened, operator, key, limit)
    if of_timers:
        return _timers(opened, operator, key, limit, internal=show_all)
    rows = count_waiting(opened, operator, key)
    checkpoint = opened.checkpoint.checkpoint_id
    return Report(
        *facts(checkpoint=checkpoint, waiting=typed_rows(rows)),
        rows_table(rows) if rows.rows else None,
        f"{'what waits' if rows.rows else 'nothing waits'}, at checkpoint {checkpoint}",
        "--calls, --held and --timers list them" if rows.rows else None,
    )


def _calls(job: JobAtCheckpoint, operator: str | None, key: str | None, limit: int) -> Report:
    from headrace.cli.output import rows_table
    from headrace.readers.waiting import count_retries, list_retries

    rows = list_retries(job, operator, limit, key=key)
    counts = count_retries(job, operator, key)
    total = sum(row["waiting"] for row in counts.dicts())
    return of_rows(job, rows, "waiting", rows_table(counts) if rows.rows else None, total=total)


def _held(job: JobAtCheckpoint, operator: str | None, key: str | None, limit: int) -> Report:
    from headrace.readers.waiting import count_requests, list_requests

    rows = list_requests(job, operator, limit, key=key)
    total = total_of(rows, limit, lambda: count_requests(job, operator, key))
    return of_rows(job, rows, "requests", total=total)


def _timers(job: JobAtCheckpoint, operator: str | None, key: str | None, limit: int, *, internal: bool) -> Report:
    from headrace.readers.waiting import count_internal_timers, count_timers, list_timers

    left_out = 0 if internal else count_internal_timers(job, operator, key)
    rows = list_timers(job, limit, internal=internal, operator=operator, key=key)
    total = total_of(rows, limit, lambda: count_timers(job, internal=internal, operator=operator, key=key))
    return of_rows(job, rows, "timers", total=total, timers_left_out=left_out)


_COUNTS: Final = ("requeued", "requeued_rows", "requeued_files", "requeued_elements")


def register_quarantine(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quarantine")(quarantine)


def quarantine(
    job: Job = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    limit: Limit = 50,
    requeue: Annotated[bool, typer.Option("--requeue", help="Let the next run try again, where possible.")] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Remove input that nobody needs. A dry run, unless --apply is given.")
    ] = False,
    operator: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--operator", "--source", metavar="NAME", help="Only input that this operator or source has set aside."
        ),
    ] = None,
    file: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--file",
            metavar="FILE",
            help="With --requeue or --discard: only rows of this file of a source. May be repeated.",
        ),
    ] = None,
    why: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--why", metavar="TEXT", help="With --requeue or --discard: the reason, kept with the checkpoint."
        ),
    ] = None,
    apply: Apply = False,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """List input that was set aside, newest first, with the reason; or requeue it, or discard it.

    --requeue takes input out of the quarantine, as a checkpoint, so that the next run tries again. Refused rows and files of
    sources: the next run reads them from their files again and takes them in first. Fix the cause before; a row that is
    still bad comes back. Failed elements of async operators: the next run calls for each again, with all attempts. Other
    rows stay: deliver them again. To undo it, restore the checkpoint before it.

    --discard removes input of any kind that nobody needs, as a checkpoint, with --apply and --why; without --apply it shows what would
    go. At a terminal it asks. 'headrace restore' undoes it while retention keeps the checkpoint before it.

    Example:  headrace quarantine flights

    Example:  headrace quarantine flights --discard --source flight_events --apply --why "test rows of the sender"

    Example:  headrace quarantine flights --requeue --source flight_events --why "delay may be null now"

    Example:  headrace quarantine flights --requeue --operator weather --why "the service is back"

    Exit codes: 0, also when nothing can be requeued; 2 for an unknown job, operator, source or checkpoint, nothing to discard, or no
    reason to; 3 while a run holds
    the job; 7 when a file of a refused row is gone or has changed; 8 when the job's files are gone; 10 when job and sink disagree.
    """
    if requeue and discard:
        msg = "--requeue takes input in again, and --discard removes it: name one of them"
        raise typer.BadParameter(msg)
    if discard:
        return _discard(load(job, branch=branch), operator, file or [], why, run_id, apply=apply)
    if requeue:
        return _requeue(load(job, branch=branch), operator, file or [], why, run_id or new_run_id())
    from headrace.readers.waiting import count_quarantine, list_quarantine

    opened = open_job(job, at, as_of, branch=branch)
    rows = list_quarantine(opened, limit, operator)
    total = total_of(rows, limit, lambda: count_quarantine(opened, operator))
    return of_rows(opened, rows, "quarantined", total=total)


def _discard(
    config: JobConfig, operator: str | None, files: list[str], why: str | None, run_id: str | None, *, apply: bool
) -> Report | Proposal:
    from headrace.edits.discard import DiscardRows

    return corrected(config, DiscardRows(operator, tuple(files)), _discarded, run_id=run_id, apply=apply, why=why)


def _discarded(rows: Sequence[QuarantinedRow]) -> Shown:
    columns = ("operator", "position", "key", "error")
    shown = [(row["operator"], row["position"], Stored(row["key"], is_key=True), row["error"]) for row in rows[:_SHOWN]]
    return Shown({"discarded": len(rows)}, (Table.shown(columns, shown), f"{counted(len(rows), 'row')} in all."))


_SHOWN: Final = 20


def _requeue(config: JobConfig, operator: str | None, files: list[str], why: str | None, run_id: str) -> Report:
    from headrace.edits.requeue import requeue as requeue_job
    from headrace.plan.bindings import load_pipeline

    load_pipeline(config)
    checkpoint = requeue_job(config, run_id, operator=operator, files=files, why=why)
    counts = {name: checkpoint.metrics[name] if checkpoint else 0 for name in _COUNTS}
    return Report(
        *facts(job=config.job, **counts, checkpoint=checkpoint.checkpoint_id if checkpoint else None),
        *(f"{config.job}: {line}" for line in _requeued(checkpoint)),
    )


def _requeued(checkpoint: Checkpoint | None) -> Iterator[str]:
    """Yield lines on what left the quarantine."""
    from headrace.sources.position import rows_text

    if checkpoint is None:
        yield "the quarantine has nothing of this kind that can be requeued: nothing was changed"
        return
    as_of = f"as of checkpoint {checkpoint.checkpoint_id}"
    if again := rows_text(checkpoint.metrics["requeued_rows"], checkpoint.metrics["requeued_files"]):
        yield f"{again} left the quarantine, {as_of}; the next run takes them in first"
    if elements := checkpoint.metrics["requeued_elements"]:
        yield f"{counted(elements, 'element waits', 'elements wait')} again, {as_of}; the next run makes the calls"
