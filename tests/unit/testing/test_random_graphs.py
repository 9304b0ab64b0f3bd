"""Promise 1 for whole graphs: for any splits, tasks, holds and crashes, a job equals a loop."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.execution import keyed_process
from headrace.testing import PipelineHarness
from tests.jobs.graphs import Ask, Program
from tests.unit.run.test_max_memory import little_memory
from tests.unit.support.fuzzing import examples

PLACES = ("ingest.after", "task.half", "run.after", "commit.before", "commit.after", "publish.after")


NOTHING = MappingProxyType({})


@pytest.fixture(autouse=True, scope="module")
def stops_at_once():
    """Stopping tasks check after each record: with the usual 256, small programs would hold almost no record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_process, "_ASKED_AFTER", 1)
        yield


def rows_of(harness, sink):
    return Counter((row.id, row.key, row.at, row.value) for row in harness.sink(sink))


def outcome(harness, program):
    return {sink: rows_of(harness, sink) for sink in program.sinks.values()}


def fed_in_turns(program, harness, chance):
    """Feed the files of all sources, each source's in order, with runs in between."""
    waiting = {source.name: [file for file in source.files if file] for source in program.inputs}
    while any(waiting.values()):
        name = chance.choice([name for name, files in waiting.items() if files])
        harness.feed(name, waiting[name].pop(0))
        yield


@contextmanager
def few_at_once(size):
    """Let the tasks of jobs have this many bytes, and take in few rows and records at once."""
    with little_memory(size, rows=3) as limit:
        yield limit | {"execution": {"async-state": {"in-flight-records-limit": 3}}}


def check(seed, *, crashes=False, holds=False, end=False, waits=False, job=NOTHING, backend="hashmap"):
    program, chance = Program(seed, has_waits=waits), random.Random(seed + 1)
    harness = PipelineHarness(
        program.pipeline(),
        bucket=program.bucket,
        parallelism=chance.choice([1, 2, 3]),
        files_per_batch=chance.choice([1, 2, 16]),
        job={"sources": {source.name: source.settings for source in program.inputs}, **job},
        backend=backend,
    )
    for _ in fed_in_turns(program, harness, chance):
        if chance.random() < 0.5:
            crash_at = f"{chance.choice(PLACES)}:{chance.randint(1, 2)}" if crashes and chance.random() < 0.5 else None
            holds_at = chance.choice([None, "ingest.after", "task.half"]) if holds else None
            Ask.down = frozenset(chance.sample(range(4), chance.randint(0, 4))) if waits else frozenset()
            harness.run(crash_at=crash_at, budget_ends_at=holds_at)
            harness.clock.advance(chance.choice([0, 60_000]) if waits else 0)
            harness.change(parallelism=chance.choice([1, 2, 3]))
    Ask.down = frozenset()
    harness.run(finish=waits)
    harness.run(end_of_input=end)
    assert outcome(harness, program) == program.expected(end=end), f"seed {seed}"


SEEDS = st.integers(0, 1 << 32)
SIZES = st.sampled_from([1, 1000, 5000, 20_000])
BACKENDS = st.sampled_from(["hashmap", "rocksdb"])
FEW = examples(4)


@FEW
@given(seed=SEEDS)
def test_any_split_equals_a_plain_loop(seed):
    check(seed)


@pytest.fixture(scope="module", autouse=True)
def stops_are_noticed_at_once():
    """Tasks check the stop sign after every other record instead of hundreds, so little input is held, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.execution.keyed_process._ASKED_AFTER", 2)
        yield


@FEW
@given(seed=SEEDS)
def test_crashes_and_holds_change_no_graph(seed):
    check(seed, crashes=True, holds=True)


@FEW
@given(seed=SEEDS, size=SIZES, backend=BACKENDS)
def test_limits_of_memory_change_no_graph(seed, size, backend):
    with few_at_once(size) as job:
        check(seed, crashes=True, holds=True, waits=True, job=job, backend=backend)


@FEW
@given(seed=SEEDS)
def test_end_of_input_fires_every_timer(seed):
    check(seed, end=True)


@FEW
@given(seed=SEEDS)
def test_waits_in_order_change_no_graph(seed):
    check(seed, crashes=True, holds=True, waits=True)


@pytest.mark.long
@examples(24)
@given(seed=SEEDS, crashes=st.booleans(), holds=st.booleans(), end=st.booleans(), waits=st.booleans())
def test_many_random_graphs_equal_loops(seed, crashes, holds, end, waits):
    check(seed, crashes=crashes, holds=holds, end=end, waits=waits)


@pytest.mark.long
@examples(24)
@given(
    seed=SEEDS,
    size=SIZES,
    backend=BACKENDS,
    crashes=st.booleans(),
    holds=st.booleans(),
    end=st.booleans(),
    waits=st.booleans(),
)
def test_little_memory_changes_no_random_graph(seed, size, backend, crashes, holds, end, waits):
    with few_at_once(size) as job:
        check(seed, crashes=crashes, holds=holds, end=end, waits=waits, job=job, backend=backend)


def test_sampled_programs_cover_the_hard_cases():
    # The drawn programs must contain these cases by construction: else the properties above prove little.
    result = Counter()
    for seed in range(300):
        program = Program(seed)
        kinds = {op.kind for op in program.ops}
        uses = Counter(name for op in program.ops for name in op.inputs)
        result["several sources meet"] += any(len(group) > 1 for group in program.groups)
        result["a stream united with itself"] += any(
            op.kind == "union" and len(set(op.inputs)) < len(op.inputs) for op in program.ops
        )
        result["a stream of several uses"] += any(count > 1 for count in uses.values())
        result["two inputs"] += "connect" in kinds
        result["a broadcast"] += "broadcast" in kinds
        result["a side output that is read"] += any(name.endswith(".aside") for name in uses)
        result["a silent source that meets others"] += any(
            len(group) > 1 and source.is_silent and source.name in group
            for source in program.inputs
            for group in program.groups
        )
        result["late rows"] += any(
            row.at < before.at
            for source in program.inputs
            for before, row in zip(source.rows, source.rows[1:], strict=False)
        )
    assert min(result.values()) >= 15, result


@pytest.mark.parametrize("seed", [3, 7])
def test_restored_snapshot_continues_like_the_job(seed):
    program = Program(seed)
    job = {"sources": {source.name: source.settings for source in program.inputs}}
    harness = PipelineHarness(program.pipeline(), bucket=program.bucket, job=job)
    for _ in fed_in_turns(program, harness, random.Random(seed)):
        harness.run()
    snapshot = harness.snapshot()
    harness.run(end_of_input=True)
    whole = outcome(harness, program)
    harness.restore(snapshot)
    harness.run(end_of_input=True)
    assert outcome(harness, program) == whole == program.expected(end=True)
