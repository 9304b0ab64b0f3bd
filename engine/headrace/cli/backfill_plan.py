"""Plan of a backfill: what programs read of it, and what people read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.report import Fact, Report, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.run.backfill_plan import BackfillPlan


def plan_report(config: JobConfig, plan: BackfillPlan) -> Report:
    """Return the report of a plan."""
    changes = [*_listed_changes(plan)]
    return Report(
        *facts(**_plain_plan(config, plan)),
        f"plan of a backfill of {plan.requested} by job '{config.job}'; nothing was changed",
        *(Fact(None, text, label) for label, text in _shown_plan(config, plan)),
        "Input that has changed since the job took it in:" if changes else None,
        *(f"  {change}" for change in changes),
    )


def plain_lines(config: JobConfig, plan: BackfillPlan) -> list[dict[str, str]]:
    """Return what people read of a plan, for programs that show it to a person."""
    changes = (("changed input", change) for change in _listed_changes(plan))
    return [{"label": label, "text": text} for label, text in (*_shown_plan(config, plan), *changes)]


_MOST_CHANGES: Final = 10


def _listed_changes(plan: BackfillPlan) -> Iterator[str]:
    """Yield the first changes of the input, and the number of the others."""
    yield from map(str, plan.changes[:_MOST_CHANGES])
    rest = len(plan.changes) - _MOST_CHANGES
    if rest > 0:
        yield f"and {rest:,} more (--json has all)"


def _shown_plan(config: JobConfig, plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """Yield what people read of a plan, with labels."""
    from headrace.run.backfill_limits import beyond_limits
    from headrace.sources.interval import timestamp_text

    estimate = plan.estimate
    way = " (goes on)" if plan.branch is not None else " (anew)" if plan.replaced is not None else ""
    yield "branch", f"{plan.name}{way}"
    yield "forks at", f"checkpoint {plan.fork_id}, which stands at {timestamp_text(plan.begins_at)}"
    yield "because", _reason(plan)
    for setting, text in plan.settings.items():
        yield "reads", f"{setting}: {text}"
    yield "micro-batches", _listed_steps(plan)
    yield "files", f"{estimate.files:,}"
    yield "rows", f"{estimate.rows:,} at the first time"
    yield _time(estimate.seconds)
    for name, count in estimate.calls.items():
        yield "calls", f"{count:,} by '{name}' at the first time: made again"
    for name, count in estimate.responses.items():
        yield "responses", f"{count:,} of '{name}' are kept: taken, with calls for changed requests only"
    yield "sinks", ", ".join(estimate.sinks) or "none"
    yield "downstream", ", ".join(f"job '{name}'" for name in estimate.downstream) or "no job of this home"
    for reason in beyond_limits(config, plan):
        yield "limit", f"{reason}: begins only with --beyond-limits"
    yield "then", _policy(config, plan.name)


def _time(seconds: float) -> tuple[str, str]:
    """Return the label and the text of a time."""
    if seconds < _MINUTE:
        return "seconds", f"{seconds:.1f} at the first time"
    return "minutes", f"{seconds / _MINUTE:.1f} at the first time"


_MINUTE: Final = 60


def _reason(plan: BackfillPlan) -> str:
    if plan.branch is not None:
        return "the branch is open"
    return "the interval begins there" if plan.reason is None else str(plan.reason)


def _listed_steps(plan: BackfillPlan) -> str:
    if not plan.steps:
        return "none: the branch has taken in all input of the job"
    first, last = plan.steps[0], plan.steps[-1]
    return f"1: {first}" if len(plan.steps) == 1 else f"{len(plan.steps):,}: {first}, ..., {last}"


def _policy(config: JobConfig, branch: str) -> str:
    from headrace.config import Promote

    return {
        Promote.AUTOMATIC: "promotes the result (replay.promote: automatic)",
        Promote.APPROVAL: f"waits for 'headrace branch promote {config.job} {branch}' if anything differs (replay.promote: approval)",
        Promote.REFUSE: "ends after the comparison (replay.promote: refuse)",
    }[config.replay.promote]


def _plain_plan(config: JobConfig, plan: BackfillPlan) -> dict[str, Any]:
    import msgspec

    from headrace.run.backfill_limits import beyond_limits

    estimate = plan.estimate
    return {
        "job": config.job,
        "name": plan.name,
        "from": Time(plan.requested.start),
        "to": Time(plan.requested.end),
        "fork_id": plan.fork_id,
        "begins_at": Time(plan.begins_at),
        "goes_on": plan.branch is not None,
        "renews": plan.replaced is not None,
        "reason": None if plan.reason is None else msgspec.to_builtins(plan.reason),
        "settings": dict(plan.settings),
        "changes": [msgspec.to_builtins(change) for change in plan.changes],
        "steps": [str(step) for step in plan.steps],
        "files": estimate.files,
        "rows": estimate.rows,
        "seconds": estimate.seconds,
        "calls": dict(estimate.calls),
        "responses": dict(estimate.responses),
        "sinks": list(estimate.sinks),
        "downstream": list(estimate.downstream),
        "beyond_limits": beyond_limits(config, plan),
        "plan": plain_lines(config, plan),
        "promote": config.replay.promote.value,
    }
