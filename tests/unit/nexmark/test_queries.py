"""Each query gives what SQL gives, however its input is split, whatever the tasks and the backend, and after a crash."""

from __future__ import annotations

import random
from itertools import product

import pytest

from pipelines.nexmark.queries import NAMES
from pipelines.nexmark.runs import BY_WALL_CLOCK, QueryRun, Setting

BACKENDS = ("hashmap", "rocksdb", "delta")
MATRIX = [*product((1, 7, 30), (1, 2, 5), BACKENDS)]
"""Micro-batches, tasks, backends."""

SMALL_MATRIX = [*product((1, 2, 4), (1, 2, 3), ("hashmap", "rocksdb"))]
"""What each query is drawn from where seconds count."""

PLACES = ("ingest.after", "task.half", "run.after", "commit.before", "commit.after", "publish.after")


def assert_as_sql(query, inputs, batches, parallelism, backend, *, crash_at=None, events=1000):
    run = QueryRun(query, inputs(query, batches, events), Setting(parallelism, backend))
    run.run(crash_at=crash_at)
    differences = run.differences()
    assert not differences, f"{query}: {differences}"
    assert differences.expected > 0


@pytest.mark.parametrize("query", NAMES)
def test_a_query_gives_what_sql_gives(query, inputs):
    assert_as_sql(query, inputs, *random.Random(query).choice(SMALL_MATRIX))


@pytest.mark.parametrize("query", random.Random(7).sample([name for name in NAMES if name not in BY_WALL_CLOCK], 3))
def test_a_crash_changes_no_result(query, inputs):
    chance = random.Random(query)
    assert_as_sql(query, inputs, 2, 2, "rocksdb", crash_at=f"{chance.choice(PLACES)}:{chance.randint(1, 2)}")


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "parallelism", "backend"), MATRIX)
@pytest.mark.parametrize("query", NAMES)
def test_the_whole_matrix_gives_what_sql_gives(query, batches, parallelism, backend, inputs):
    assert_as_sql(query, inputs, batches, parallelism, backend, events=3000)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("query", [name for name in NAMES if name not in BY_WALL_CLOCK])
def test_no_crash_anywhere_changes_a_result(query, place, inputs):
    visit = random.Random(f"{query} {place}").randint(1, 7)
    assert_as_sql(query, inputs, 7, 2, "hashmap", crash_at=f"{place}:{visit}")
