"""The logbook of the flights of 2013: each flight with its plane and its weather, kept right when any of the three inputs is corrected."""

from __future__ import annotations

from typing import Final

from headrace import JoinType, Lifetime, Pipeline, Strategy
from pipelines.logbook.records import Entry, Flown, Line, Plane, Report


def logbook(upsert_key: tuple[str, ...] | None = None) -> Pipeline:
    """Return the graph. An `upsert_key` that is the primary key makes the last change of a flight count, as a plain MERGE does."""
    job = Pipeline("logbook")
    entries = job.source("entries", Entry, event_time="recorded_at", row_kind="kind")
    planes = job.source("planes", Plane, event_time="recorded_at", row_kind="kind")
    reports = job.source("weather", Report, event_time="recorded_at", row_kind="kind")

    # A correction may come at any time, to each of the three inputs, so all of them are kept.
    flown = entries.key_by("tailnum").join(
        "flown", planes.key_by("tailnum"), emit=Flown, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER
    )
    lines = flown.key_by(Flown.place_and_hour).join(
        "lines", reports.key_by("origin", "hour"), emit=Line.of, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER
    )
    # A flight with another tail number, or another report, is another row of the join: flight_id is no upsert key.
    lines.upsert_materialize(
        "latest", primary_key=("flight_id",), upsert_key=upsert_key, strategy=Strategy.ADAPTIVE
    ).sink("logbook")
    return job


pipeline: Final = logbook()
last_change_wins: Final = logbook(upsert_key=("flight_id",))
"""The same job without histories, to see what goes wrong."""

__all__ = ["last_change_wins", "logbook", "pipeline"]
