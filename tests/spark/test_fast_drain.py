"""A run stops at its time limit and holds the unstarted records; the next run processes them."""

from __future__ import annotations

import pytest

from headrace.errors import StateSchemaError
from headrace.run import job_run
from headrace.run.batch_sequence import BatchSequence
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows, outcome
from tests.jobs.purchase_files import day_start, purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

FEW = {"execution": {"async-state": {"in-flight-records-limit": 20}}}


def held(home):
    return live_rows(home.config(), checkpoints(home.config())[-1], "buffered_requests")


@pytest.fixture
def hurried(monkeypatch):
    """Set the time limit of every micro-batch to end after its first records."""
    monkeypatch.setattr(BatchSequence, "stop_at", lambda _: 0)


@pytest.mark.parametrize("tasks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_repeated_stops_change_no_result(home, run, hurried, tasks):
    write_days(home.input, range(2), rows=60)
    home.configure(FEW)
    report = run(home, parallelism=tasks)
    assert report.stopped_because == "drained"
    assert len(report.checkpoints) > 2
    assert held(home) == []
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=60) for day in range(2)))
    assert_well_formed(home.config())


def test_next_run_resumes_held_records_at_other_parallelism(home, new_home, run, monkeypatch):
    write_days(home.input, range(2), rows=60)
    home.configure(FEW)
    with monkeypatch.context() as patched:
        patched.setattr(BatchSequence, "stop_at", lambda _: 0)
        run(home, parallelism=2, max_batches=1)
    assert len(held(home)) > 20
    last = checkpoints(home.config())[-1]
    assert last.work.held
    assert last.timelines["purchases"].repeated
    run(home, parallelism=3, backend="hashmap")
    assert held(home) == []
    straight = new_home("straight")
    write_days(straight.input, range(2), rows=60)
    run(straight)
    assert outcome(home.config()) == outcome(straight.config())


def test_records_of_removed_operator_are_not_lost_silently(home, run, hurried, monkeypatch):
    write_days(home.input, range(1), rows=60)
    home.configure(FEW)
    run(home, max_batches=1)
    before = held(home)
    home.configure({**FEW, "pipeline": "tests.jobs.purchases:renamed"})
    with pytest.raises(StateSchemaError, match="operator 'customers': has stored state and is not declared any more"):
        run(home)
    assert held(home) == before
    # The records are kept as well if the check of its state is switched off.
    monkeypatch.setattr(job_run, "settle_schemas", lambda *_: None)
    with pytest.raises(StateSchemaError, match="operator 'customers' holds records"):
        run(home)
    assert held(home) == before


def test_stopped_run_begins_no_further_part(home, run, monkeypatch):
    write_days(home.input, range(2), rows=60)
    monkeypatch.setattr(BatchSequence, "make", lambda self, *_, **__: self.stop())
    report = run(home, mode="interval", interval_start=day_start(0), interval_end=day_start(1))
    assert report.checkpoints == []
    assert list(home.folder.rglob("stop")) == []
