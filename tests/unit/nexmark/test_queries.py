"""Each query equals SQL, for any split of its input, any number of tasks, any backend, and after a crash.

Long tests run three places of the matrix and one crash for each query, with different places for different queries.
`HEADRACE_NEXMARK=all` runs the whole matrix, and a crash of every query at every place.
"""

from __future__ import annotations

import os
import random
from itertools import product

import pytest

from pipelines.nexmark.queries import NAMES
from pipelines.nexmark.runs import BY_WALL_CLOCK, QueryRun, Setting

BACKENDS = ("hashmap", "rocksdb", "delta")
BATCHES = (1, 5, 12)
MATRIX = [*product(BATCHES, (1, 2, 5), BACKENDS)]
"""Micro-batches, tasks, backends."""

SMALL_MATRIX = [*product((1, 2), (1, 2, 3), ("hashmap", "rocksdb"))]
"""What each query is drawn from where seconds count."""

PLACES = ("ingest.after", "task.half", "run.after", "commit.before", "commit.after", "publish.after")


def assert_as_sql(query, inputs, batches, parallelism, backend, *, crash_at=None, events=1000):
    run = QueryRun(query, inputs(query, batches, events), Setting(parallelism, backend))
    run.run(crash_at=crash_at)
    differences = run.differences()
    assert not differences, f"{query}: {differences}"
    assert differences.expected > 0


@pytest.mark.slow
@pytest.mark.parametrize("query", NAMES)
def test_query_result_equals_sql(query, inputs):
    assert_as_sql(query, inputs, *random.Random(query).choice(SMALL_MATRIX))


@pytest.mark.slow
@pytest.mark.parametrize("query", random.Random(7).sample([name for name in NAMES if name not in BY_WALL_CLOCK], 2))
def test_crash_changes_no_result(query, inputs):
    chance = random.Random(query)
    assert_as_sql(query, inputs, 2, 2, "rocksdb", crash_at=f"{chance.choice(PLACES)}:{chance.randint(1, 2)}")


WHOLE = os.environ.get("HEADRACE_NEXMARK") == "all"
CRASHING = [name for name in NAMES if name not in BY_WALL_CLOCK]


def played(query):
    """Return places in the matrix: all of them, or three with each value of each side, different for each query."""
    if WHOLE:
        return [(query, *case) for case in MATRIX]
    turn = int(query[1:])
    return [(query, BATCHES[side], (1, 2, 5)[(side + turn) % 3], BACKENDS[(side + turn // 3) % 3]) for side in range(3)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "batches", "parallelism", "backend"), [case for query in NAMES for case in played(query)]
)
def test_query_matrix_equals_sql(query, batches, parallelism, backend, inputs):
    assert_as_sql(query, inputs, batches, parallelism, backend)


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "place"),
    [(query, place) for query in CRASHING for place in (PLACES if WHOLE else random.Random(query).sample(PLACES, 1))],
)
def test_crash_at_any_point_changes_no_result(query, place, inputs):
    visit = random.Random(f"{query} {place}").randint(1, 7)
    assert_as_sql(query, inputs, 7, 2, "hashmap", crash_at=f"{place}:{visit}")
