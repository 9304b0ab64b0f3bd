"""Any order of additions and retractions, split in any way into days and runs, gives the result of SQL over the files."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from headrace import RowKind
from headrace.testing import PipelineHarness
from pipelines.logbook import pipeline
from pipelines.logbook.changes import SOURCES
from pipelines.logbook.records import Entry, Plane, Report
from pipelines.logbook.verify import verify_midway
from tests.unit.support.fuzzing import examples

DAY_ONE = 1_356_998_400_000
MINUTE, DAY = 60_000, 86_400_000
FLIGHTS, TAILNUMS, HOURS = ("f", "g"), ("N1", "N2"), (0, 3_600_000)

additions = st.one_of(
    st.tuples(st.just("entries"), st.sampled_from(FLIGHTS), st.sampled_from(TAILNUMS)),
    st.tuples(st.just("planes"), st.sampled_from(TAILNUMS), st.sampled_from(["A320", "B737"])),
    st.tuples(st.just("weather"), st.sampled_from(HOURS), st.sampled_from([30.0, 40.0, None])),
)
retractions = st.tuples(st.just("retract"), st.integers(0, 99), st.none())
courses = st.lists(st.lists(st.one_of(additions, retractions), max_size=8), min_size=1, max_size=5)


def record_of(source, key, value, at):
    if source == "entries":
        return Entry(key, "AA", 1, value, "JFK", "LAX", DAY_ONE, HOURS[FLIGHTS.index(key)], at)
    if source == "planes":
        return Plane(key, "maker", value, None, 100, at)
    return Report("JFK", key, value, None, 10.0, at)


def day_of(number, steps, in_force):
    """Return the rows of one day by source; a retraction takes back any valid row, except rows that others need."""
    rows = {name: [] for name in SOURCES}
    for place, (name, key, value) in enumerate(steps):
        if name != "retract":
            record = record_of(name, key, value, DAY_ONE + number * DAY + (place + 1) * MINUTE)
            in_force.append((name, record))
            rows[name].append((RowKind.UPDATE_AFTER, record))
        elif in_force:
            source, record = in_force.pop(key % len(in_force))
            rows[source].append((RowKind.UPDATE_BEFORE, record))
    return rows


@pytest.mark.long
@examples(10)
@example(
    [[("planes", "N1", "A320"), ("entries", "f", "N1"), ("entries", "f", "N2")], [("retract", 0, None)]], "map", 1, 2
)
@example(
    [[("weather", 0, 30.0), ("entries", "f", "N1")], [("planes", "N1", "A320"), ("retract", 0, None)]], "value", 1, 2
)
@given(courses, st.sampled_from(["legacy", "value", "map", "adaptive"]), st.integers(1, 3), st.integers(1, 5))
def test_any_sequence_of_changes_gives_valid_rows(days, strategy, parallelism, bucket):
    """The valid rows are the rows that were not retracted."""
    job = {
        "sources": {name: {"interval": "%Y-%m-%d", "complete_intervals": True} for name in SOURCES},
        "execution": {"upsert-materialize": {"strategy": strategy}},
    }
    harness = PipelineHarness(pipeline, job=job, parallelism=parallelism, bucket=bucket)
    in_force = []
    for number, steps in enumerate(days):
        for name, rows in day_of(number, steps, in_force).items():
            kinds, records = [kind for kind, _ in rows], [record for _, record in rows]
            harness.feed(name, records, kinds=kinds, file=f"2013-01-{number + 1:02d}.parquet")
        harness.run()
        logbook = harness.sink_table("logbook")
        if logbook.num_columns:
            result = verify_midway(logbook, harness.folder / "input")
            assert result.total == 0, [*result.lines("logbook")]
    flights = {record.flight_id for name, record in in_force if name == "entries"}
    assert {line.flight_id for line in harness.sink("logbook")} == flights
    assert harness.table("quarantine").num_rows == 0
