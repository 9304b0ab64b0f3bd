"""Changes between full extracts: a table of them equals the last complete extract, and its versions a fold over all extracts."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import History, Lifetime, Pipeline, Struct, Timestamp
from headrace.api.changelog_inference import changes_of
from headrace.testing import PipelineHarness
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples

MS = timedelta(milliseconds=1)


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    tier: str = "a"


class Version(Struct, frozen=True):
    id: str
    tier: str
    valid_from: Timestamp
    valid_to: Timestamp | None


def source(*, lag=0, row_kind=None):
    return Pipeline("shop").source(
        "rows", Row, event_time="at", out_of_orderness=timedelta(milliseconds=lag), row_kind=row_kind
    )


def harness_of(every, *, lag=0, **options):
    changes = source(lag=lag).snapshot_changes("changes", key=("id",), time="at", every=every * MS)
    bounds = {"tombstones": Lifetime.FOREVER, "corrections": Lifetime.FOREVER}
    versions = changes.apply_changes(
        "versions", key=("id",), sequence_by="at", history=History.SCD2, record=Version, **bounds
    )
    pipeline = versions.upsert_materialize("m", primary_key=("id", "valid_from")).sink("versions")
    return PipelineHarness(pipeline, bucket=1, **options)


def versions_of(extracts):
    """Return the versions of all keys, from extracts by time: what each one has, by key. The last one is not complete."""
    rows, (*_, last) = [], sorted(extracts)
    for key in {key for extract in extracts.values() for key in extract}:
        current = None
        for at in sorted(extracts):
            tier = extracts[at].get(key)
            if current is not None and tier != current.tier and (tier is not None or at != last):
                rows.append(Version(key, current.tier, current.valid_from, at))
                current = None
            if current is None and tier is not None:
                current = Version(key, tier, at, None)
        rows += [] if current is None else [current]
    return by_fields(rows)


EXTRACTS = st.dictionaries(
    st.integers(1, 30), st.dictionaries(st.sampled_from("xyz"), st.sampled_from("ab"), min_size=1), max_size=6
)
END = {100: {"w": "a"}, 200: {"w": "a"}}
"""Extracts that make those before them complete."""


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@examples(25)
@given(
    extracts=EXTRACTS,
    every=st.integers(1, 12),
    lag=st.sampled_from([0, 8]),
    order=st.randoms(use_true_random=False),
    cuts=st.sets(st.integers(1, 15), max_size=3),
)
def test_versions_equal_a_fold_over_extracts(parallelism, extracts, every, lag, order, cuts):
    extracts = extracts | END
    rows = [Row(key, at, tier) for at, extract in extracts.items() for key, tier in extract.items()]
    rows.sort(key=lambda row: row.at + order.randint(0, lag))
    harness = harness_of(every, lag=lag + 1, parallelism=parallelism, files_per_batch=1)
    places = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for begin, end in pairwise(places):
        harness.feed("rows", rows[begin:end])
    assert harness.run().quarantined == 0
    assert by_fields(harness.sink("versions")) == versions_of(extracts)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sink", "normalize"])
@examples(15)
@given(
    extracts=EXTRACTS, every=st.integers(1, 12), lag=st.sampled_from([0, 8]), order=st.randoms(use_true_random=False)
)
def test_changes_of_a_key_come_in_order(method, extracts, every, lag, order):
    last = max(extracts, default=None)
    extracts |= {50: {"w": "a", **extracts.get(last, {})}, 100: {"w": "a"}}
    rows = [Row(key, at, tier) for at, extract in extracts.items() for key, tier in extract.items()]
    rows.sort(key=lambda row: row.at + order.randint(0, lag))
    changes = source(lag=lag + 1).snapshot_changes("changes", key="id", time="at", every=every * MS)
    changes = changes.normalize("whole") if method == "normalize" else changes
    harness = PipelineHarness(changes.sink("rows", key="id"), bucket=1, files_per_batch=1)
    for begin in range(0, len(rows), 4):
        harness.feed("rows", rows[begin : begin + 4])
    harness.run()
    assert {row.id: row.tier for row in harness.sink("rows")} == extracts[50]


def test_missing_extract_deletes_nothing():
    harness = harness_of(10)
    harness.feed("rows", [Row("x", 10), Row("y", 50), Row("x", 50), Row("y", 61)])
    harness.run()
    assert by_fields(harness.sink("versions")) == [Version("x", "a", 10, None), Version("y", "a", 50, None)]


def test_row_of_complete_extract_is_refused():
    harness = harness_of(10)
    harness.feed("rows", [Row("x", 10), Row("x", 20), Row("y", 10)])
    assert harness.run().quarantined == 1
    (refused,) = harness.table("quarantine").to_pylist()
    assert "its snapshot, at=10, is complete" in refused["error"]


def test_other_event_time_is_refused():
    changes = source().assign_event_time(lambda row: row.at + 1)
    stream = changes.snapshot_changes("changes", key=("id",), time="at", every=MS)
    harness = PipelineHarness(stream.upsert_materialize("m", primary_key=("id",)).sink("out"), bucket=1)
    harness.feed("rows", [Row("x", 10)])
    assert harness.run().quarantined == 1
    (refused,) = harness.table("quarantine").to_pylist()
    assert refused["error"] == "its event time is 11, and at, the time of its snapshot, is 10"


def test_state_of_former_extracts_is_freed():
    harness = harness_of(10)
    harness.feed("rows", [Row(key, at) for at in range(10, 200, 10) for key in "xyz"])
    harness.run()
    states = harness.table("keyed_state").to_pylist()
    names = [row["state"] for row in states if row["operator"] in {"changes", "changes_announced"}]
    assert {name: names.count(name) for name in names} == {"present": 3, "pending": 3, "known": 1, "snapshots": 3}


def test_result_is_a_stream_of_upserts():
    stream = source().snapshot_changes("changes", key=("id",), time="at", every=MS)
    assert str(changes_of(stream._use())) == "upsert(id)"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"key": ()}, "needs the fields of the key"),
        ({"time": "day"}, "Row has no field 'day'"),
        ({"time": "tier"}, "a Timestamp, and 'tier' of Row is str"),
        ({"every": timedelta(0)}, "at least 1 ms"),
        ({"row_kind": "op"}, "a snapshot has rows alone, and the stream is retract"),
    ],
)
def test_wrong_arguments_are_refused(options, reason):
    arguments = {"key": ("id",), "time": "at", "every": MS, **options}
    rows = source(row_kind=arguments.pop("row_kind", None))
    with pytest.raises((TypeError, ValueError), match=f"snapshot_changes 'changes': .*{reason}"):
        rows.snapshot_changes("changes", **arguments)
