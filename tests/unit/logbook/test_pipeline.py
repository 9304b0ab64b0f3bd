"""The job against its independent check, after every micro-batch, for any split of the input and any way of running."""

from __future__ import annotations

import pytest

from headrace.testing import PipelineHarness
from pipelines.logbook import last_change_wins, pipeline
from pipelines.logbook.changes import SOURCES
from pipelines.logbook.verify import Disorder, Histories, verify, verify_midway
from tests.jobs.logbook_days import LAST, deliver, write_days

SOURCE = {"interval": "%Y-%m-%d", "complete_intervals": True}


def harness_of(job, *, strategy="adaptive", **options):
    thresholds = {"adaptive.threshold.high": 2, "adaptive.threshold.low": 1} if strategy == "adaptive" else {}
    settings = {
        "sources": dict.fromkeys(SOURCES, SOURCE),
        "execution": {"upsert-materialize": {"strategy": strategy, **thresholds}},
    }
    return PipelineHarness(job, job=settings, files_per_batch=100, **options)


@pytest.fixture(scope="module")
def days(tmp_path_factory, raw):
    """The folder with the changes of a seed, and its days."""
    result = {}

    def folder(seed):
        if seed not in result:
            path = tmp_path_factory.mktemp("days")
            result[seed] = path, write_days(path, seed, raw)
        return result[seed]

    return folder


def parts_of(files, ends):
    """Split the days behind these numbers of days."""
    return [files[start:end] for start, end in zip([0, *ends], [*ends, len(files)], strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "ends", "options"),
    [
        (3, [2, 3], {"parallelism": 2, "strategy": "map", "backend": "hashmap"}),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                (1, [], {"parallelism": 1, "strategy": "legacy"}),
                (1, [1, 2, 3, 5], {"parallelism": 3, "strategy": "map", "backend": "rocksdb"}),
                (2, [2, 4, 12], {"parallelism": 2, "strategy": "value", "backend": "delta", "bucket": 7}),
                (3, [1, 3, 4], {"parallelism": 5, "strategy": "adaptive", "backend": "rocksdb", "bucket": 50}),
            ]
        ),
    ],
)
def test_logbook_is_right_after_every_run(raw, days, seed, ends, options):
    folder, files = days(seed)
    harness = harness_of(pipeline, **options)
    for part in parts_of(files, ends):
        deliver(folder, harness.folder / "input", part)
        harness.run()
        differences = verify_midway(harness.sink_table("logbook"), harness.folder / "input")
        assert differences.total == 0, [*differences.lines("logbook")]
    differences = verify(harness.sink_table("logbook"), LAST, raw=raw)
    assert differences.total == 0, [*differences.lines("logbook")]
    assert differences.actual > 100
    assert harness.table("quarantine").num_rows == 0
    assert Histories.of(harness.table("materializer_history")).several_now == 0


def test_histories_hold_several_rows_between_runs(days):
    folder, files = days(1)
    harness = harness_of(pipeline)
    deliver(folder, harness.folder / "input", files[:3])
    harness.run()
    histories = Histories.of(harness.table("materializer_history"))
    assert histories.several_now > 20
    assert max(histories.keys_by_length) >= 3
    assert Disorder.of(folder).late > 50


def test_keeping_only_the_last_change_loses_flights(raw, days):
    folder, files = days(1)
    harness = harness_of(last_change_wins)
    deliver(folder, harness.folder / "input", files)
    harness.run()
    differences = verify(harness.sink_table("logbook"), LAST, raw=raw)
    assert differences.missing > 50
    assert harness.table("materializer_history").num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["task.half:2", "commit.after"])
def test_crash_between_corrections_changes_nothing(raw, days, place):
    folder, files = days(2)
    harness = harness_of(pipeline, backend="rocksdb")
    deliver(folder, harness.folder / "input", files[:3])
    harness.run()
    deliver(folder, harness.folder / "input", files[3:])
    assert harness.run(crash_at=place) is None
    harness.run()
    assert verify(harness.sink_table("logbook"), LAST, raw=raw).total == 0
