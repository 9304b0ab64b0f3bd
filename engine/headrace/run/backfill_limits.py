"""Limits of a backfill: what its plan may expect before a person has to allow it."""

from __future__ import annotations

import math

from headrace.config import JobConfig
from headrace.errors import LimitError
from headrace.names import counted
from headrace.run.backfill_plan import BackfillPlan


def beyond_limits(config: JobConfig, plan: BackfillPlan) -> list[str]:
    """Return how a plan goes beyond the limits of the job's file, as clauses. An open backfill has been allowed before."""
    if plan.branch is not None:
        return []
    expected = {
        "max_calls": (sum(plan.estimate.calls.values()), config.replay.max_calls, "call"),
        "max_minutes": (math.ceil(plan.estimate.seconds / 60), config.replay.max_minutes, "minute"),
    }
    return [
        f"{counted(value, unit)} expected, and replay.{name} is {most:,}"
        for name, (value, most, unit) in expected.items()
        if most is not None and value > most
    ]


def refuse_beyond_limits(config: JobConfig, plan: BackfillPlan) -> None:
    """Raise `LimitError` for a plan that goes beyond the limits of the job's file."""
    if reasons := beyond_limits(config, plan):
        msg = (
            f"the backfill '{plan.name}' of job '{config.job}' goes beyond its limits: {'; '.join(reasons)}. Nothing was begun. "
            "'--dry-run' shows the plan, and '--beyond-limits' allows this backfill; the limits are in the job's file."
        )
        raise LimitError(msg)
