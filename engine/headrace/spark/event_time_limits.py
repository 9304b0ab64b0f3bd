"""Latest event times that the stages of a micro-batch accept, from `max_ahead` of their sources."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import SourceConfig
from headrace.plan.event_time_limit import EventTimeLimit, limit_of
from headrace.plan.stages import Plan


def event_time_limits(plan: Plan, configs: Mapping[str, SourceConfig], began_at: int) -> dict[str, EventTimeLimit]:
    """Return the limit of each source and keyed operator, in a micro-batch that began at `began_at` (ms); stages without a limit are left out.

    An operator has the widest limit of the sources that reach it, and is strict if one of them is.
    """
    limits: dict[str, EventTimeLimit] = {}
    stages = {stage.name: (stage.name,) for stage in plan.source_stages} | {
        stage.name: stage.sources for stage in plan.keyed
    }
    for name, sources in stages.items():
        spans = [configs[source].max_ahead for source in sources]
        known = [span for span in spans if span is not None]
        if len(known) == len(spans):
            is_strict = any(configs[source].on_bad_row == "fail" for source in sources)
            limits[name] = limit_of(began_at, max(known), is_strict=is_strict)
    return limits
