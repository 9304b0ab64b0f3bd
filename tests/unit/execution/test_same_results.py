"""Promise 1: results don't depend on parallelism, on batches, on micro-batches, on the backend, or on a rebuild."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.backend import VALUE_PREFIX, unpacked
from headrace.state.codec import decode_key
from headrace.tables.changelog import Changelog
from headrace.tables.entries import rebuild
from headrace.tables.schemas import KEYED_STATE, TIMERS
from tests.unit.support.arrow_tables import views_of
from tests.unit.support.by_hand import End, Stage
from tests.unit.support.micro_batches import BUCKET, GROUPS, LAG, Job, changes_of, no_rows
from tests.unit.support.steps import CoSteps, RuledSteps, Steps, step_lists, steps_operator


def run_by_hand(functions, steps, *, bucket, lag):
    """Run a chain of functions over steps with a watermark after each full bucket; return the stages and the output."""
    end = End()
    stages: list[Stage] = []
    for function in reversed(functions):
        stages.insert(0, Stage(function, stages[0] if stages else end))
    first = stages[0]
    latest = watermark = None
    for ordinal, step in enumerate(steps, 1):
        first.take(step, step.at)
        latest = step.at if latest is None else max(latest, step.at)
        if ordinal % bucket == 0 and (watermark is None or latest - lag > watermark):
            watermark = latest - lag
            first.advance(watermark)
    return stages, end.records


@dataclass
class RebuiltJob(Job):
    """A job that forgets its backends after every slice: state is restored from rows of the state tables alone."""

    tables: dict = field(default_factory=no_rows)
    checkpoint: int = 0

    def take(self, steps, parallelism=1):
        self.backends, self.checkpoint = {}, self.checkpoint + 1
        return super().take(steps, parallelism)

    def backend(self, stage, groups):
        if (stage, groups) not in self.backends:
            backend = super().backend(stage, groups)
            rebuild(backend, views_of(self.tables), self.operators[stage].name, groups)
        return self.backends[stage, groups]

    def keep(self, stage, groups, process):
        rows = Changelog(self.operators[stage].name, self.checkpoint, GROUPS)
        for store, changes in changes_of(process):
            self.tables[KEYED_STATE].append(rows.values(store, changes))
        self.tables[TIMERS].append(rows.timers(process.timers.changes()))
        super().keep(stage, groups, process)


def operators(count, function=Steps):
    return [steps_operator(f"steps_{number}", function) for number in range(count)]


def slices(steps, cuts):
    places = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    return [steps[start:end] for start, end in itertools.pairwise(places)]


cut_lists = st.lists(st.integers(0, 20), min_size=1, max_size=3)
functions = st.sampled_from([Steps, CoSteps, RuledSteps])
stages = pytest.mark.parametrize("count", [1, 3])


@stages
@given(steps=step_lists(), function=functions)
def test_outputs_sort_as_in_a_plain_loop(backends, count, steps, function):
    _, expected = run_by_hand([function() for _ in range(count)], steps, bucket=BUCKET, lag=LAG)
    with backends.lent() as new:
        sent, *_ = Job(operators(count, function), new).take(steps).outcome()
    assert [(element.record, element.timestamp) for element in sent] == expected


@given(steps=step_lists())
def test_state_and_timers_equal_a_plain_loop(backends, steps):
    (stage,), _ = run_by_hand([Steps()], steps, bucket=BUCKET, lag=LAG)
    with backends.lent() as new:
        job = Job(operators(1), new).take(steps)
        result = live_state(job)
    expected = {(name, key): result for name, state in stage.states.items() for key, result in state.found.items()}
    assert result == (expected, stage.due)


@given(steps=step_lists(), cuts=cut_lists, batch=st.integers(1, 7))
def test_splitting_into_micro_batches_changes_nothing(backends, steps, cuts, batch):
    with backends.lent() as new:
        whole = Job(operators(2), new).take(steps).outcome()
        job = Job(operators(2), new, batch)
        for part in slices(steps, cuts):
            job.take(part)
        assert job.outcome() == whole


@pytest.mark.parametrize("parallelism", [2, 7])
@given(steps=step_lists(), cuts=cut_lists)
def test_parallelism_changes_nothing(backends, parallelism, steps, cuts):
    with backends.lent() as new:
        whole = Job(operators(2), new).take(steps).outcome()
        job = Job(operators(2), new)
        for part in slices(steps, cuts):
            job.take(part, parallelism)
        assert job.outcome() == whole


@given(
    steps=step_lists(),
    cuts=st.lists(st.integers(0, 20), max_size=2),
    parallelism=st.permutations([1, 2, 7]),
    function=functions,
)
def test_rebuilt_state_is_equal_at_any_parallelism(backends, steps, cuts, parallelism, function):
    """State rebuilt from its changelog is the same at any parallelism."""
    with backends.lent() as new:
        whole = Job(operators(1, function), new).take(steps).outcome()
        job = RebuiltJob(operators(1, function), new)
        for part, tasks in zip(slices(steps, cuts), parallelism, strict=False):
            job.take(part, tasks)
        assert job.outcome() == whole


def live_state(job):
    """The values as (state, key) to (value, stamp), and the timers as (time, key)."""
    values, timers = {}, set()
    for backend in job.backends.values():
        for entry, stored in backend.items():
            if entry[:1] == VALUE_PREFIX:
                state, _, key = entry[1:].partition(b"\x00")
                declared = getattr(Steps, state.decode()).type
                stamp, _, raw = unpacked(stored)
                values[state.decode(), decode_key(key)] = msgspec.json.decode(raw, type=declared), stamp
            else:
                timers.add((int.from_bytes(entry[2:10], "big") - (1 << 63), decode_key(entry[10:])))
    return values, timers
