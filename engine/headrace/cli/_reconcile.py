"""`headrace reconcile`: compare a job with its sinks, and bring both together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli._arguments import AsJson, Job, load, new_run_id
from headrace.names import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli._table import Table
    from headrace.commit.checkpoint import Checkpoint
    from headrace.commit.reconcile import Comparison, ReconcilePlan, SinkDifference, SinkRestore
    from headrace.config import JobConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reconcile")(reconcile)


def reconcile(
    job: Job = None,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without it, nothing changes.")] = False,
    why: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--why", help="With --apply: the reason, kept with the checkpoint."),
    ] = None,
    run_id: Annotated[Optional[str], typer.Option("--run-id", help="Id of this call; a new one if left out.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """Compare a job with its sinks, and bring them together after one was lost or came from a backup.

    Shows the checkpoint that each sink has and the one it should have, and what --apply would do: job and sinks go
    back to the newest checkpoint that all of them can reach, as a restore. The next run takes in later input again.
    It deletes nothing. Without --apply it needs no lease and changes nothing.

    Example:  headrace reconcile flights
    Example:  headrace reconcile flights --apply --why "the lake came from the backup of Sunday"

    Exit codes: 0, also when there is nothing to do; 2 unknown job, or --apply without --why; 3 a run holds the job; 8 storage;
    10 job and sinks cannot be brought together: the message has the ways out.
    """
    from headrace.cli._output import print_json, show
    from headrace.errors import ConfigError, SinkMismatchError
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.commit.reconcile import compare
    from headrace.commit.reconcile import reconcile as reconcile_job

    if apply and not why:
        msg = "--apply needs a reason, which is kept with the checkpoint: --why TEXT"
        raise ConfigError(msg)
    config = load(job)
    comparison = compare(config)
    if not as_json:
        show(_sinks(config, comparison))
    if comparison.refusal is not None:
        raise SinkMismatchError(comparison.refusal)
    checkpoint = reconcile_job(config, run_id or new_run_id(), why) if apply and why else None
    if as_json:
        print_json(_plain(config, comparison, checkpoint))
    else:
        show(*_told(config, comparison, checkpoint))


def _sinks(config: JobConfig, comparison: Comparison) -> Table:
    from headrace.cli._output import table

    columns = ("sink", "path", "has", "should have", "what is wrong")
    home = f"{config.home}/"
    return table(
        columns,
        [
            (sink.sink, sink.path.removeprefix(home), _has(sink), _number(sink.wanted), _detail(sink))
            for sink in comparison.sinks
        ],
    )


def _has(sink: SinkDifference) -> str:
    return "no table" if not sink.exists else _number(sink.published)


def _number(checkpoint_id: int | None) -> str:
    return "nothing" if checkpoint_id is None else str(checkpoint_id)


def _detail(sink: SinkDifference) -> str:
    if sink.mismatch is not None:
        return sink.mismatch.short
    return "not published yet" if _is_unpublished(sink) else ""


def _is_unpublished(sink: SinkDifference) -> bool:
    return (
        sink.mismatch is None and sink.wanted is not None and (sink.published is None or sink.published < sink.wanted)
    )


def _told(config: JobConfig, comparison: Comparison, checkpoint: Checkpoint | None) -> Iterator[str]:
    if checkpoint is not None:
        yield (
            f"{config.job}: job and sinks are at checkpoint {checkpoint.restored_from} again, as checkpoint {checkpoint.checkpoint_id}. "
            f"Go on:  headrace run {config.job}"
        )
    elif comparison.plan is None:
        waiting = [sink for sink in comparison.sinks if _is_unpublished(sink)]
        last = f" The next run publishes checkpoint {comparison.last_id} first." if waiting else ""
        yield f"{config.job}: job and sinks agree, nothing to do.{last}"
        for sink in waiting:
            if sink.rules:
                yield (
                    f"The table of sink {sink.sink} refuses rows that break one of its rules: {'; '.join(sink.rules)}. docs/errors.md (10) "
                    "has the ways on."
                )
    else:
        yield f"{config.job}: job and sinks do not fit together. With --apply:"
        yield from (f"- {line}" for line in _steps(config, comparison, comparison.plan))
        yield "Nothing was changed. To do it:"
        yield f'  headrace reconcile {config.job} --apply --why "..."'


def _steps(config: JobConfig, comparison: Comparison, plan: ReconcilePlan) -> Iterator[str]:
    from headrace.cli._change import stays_sent
    from headrace.cli._output import at_time, shown_moment

    if plan.undone:
        count = counted(len(plan.undone), "checkpoint")
        yield (
            f"The job goes back {count}, from {comparison.last_id} to {plan.target_id} (as checkpoint {plan.checkpoint_id}). The "
            f"next run takes in their input again ({counted(plan.rows_in, 'row')}), as long as it is there."
        )
    else:
        yield f"The job stays at checkpoint {plan.target_id} (as checkpoint {plan.checkpoint_id})."
    if lost := [
        sink.published for sink in comparison.sinks if sink.published and sink.published > (comparison.last_id or 0)
    ]:
        yield (
            f"The job's folder lacks what came up to checkpoint {max(lost)}. The next run takes that in again, as long as the "
            "input is there."
        )
    yield from (_step_of(name, sink) for name, sink in plan.sinks.items())
    yield from stays_sent(config)
    before, after = at_time(plan.covered_before), at_time(plan.covered_after)
    if before is not None and before != after:
        start = shown_moment(after) if after is not None else "the first one"
        yield f"Interval runs go on from {start}: all up to {shown_moment(before)} have to be run again."


def _step_of(name: str, sink: SinkRestore) -> str:
    if sink.now is None:
        return f"Sink {name} is made anew, empty."
    if sink.now == sink.then:
        return f"Sink {name} keeps its rows (version {sink.now} of its table)."
    return f"Sink {name} goes back from version {sink.now} of its table to the rows of version {sink.then}."


def _plain(config: JobConfig, comparison: Comparison, checkpoint: Checkpoint | None) -> dict[str, Any]:
    plan = comparison.plan
    return {
        "job": config.job,
        "agrees": comparison.agrees,
        "applied": checkpoint is not None,
        "last_checkpoint": comparison.last_id,
        "sinks": [
            {
                "sink": sink.sink,
                "path": sink.path,
                "exists": sink.exists,
                "has": sink.published,
                "should_have": sink.wanted,
                "mismatch": sink.mismatch.kind.value if sink.mismatch else None,
                "detail": _detail(sink),
                "version": plan.sinks[sink.sink].now if plan else None,
                "goes_back_to_version": plan.sinks[sink.sink].then if plan else None,
            }
            for sink in comparison.sinks
        ],
        "plan": plan
        and {
            "target_checkpoint": plan.target_id,
            "new_checkpoint": plan.checkpoint_id,
            "undone_checkpoints": list(plan.undone),
            "rows_taken_in_again": plan.rows_in,
        },
        "checkpoint": checkpoint.checkpoint_id if checkpoint else None,
    }
