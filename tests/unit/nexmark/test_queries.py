"""Each query gives what SQL gives, however its input is split, whatever the tasks and the backend, and after a crash.

Slow tests play a third of the matrix for each query, another one for its neighbour. `HEADRACE_NEXMARK=all` plays all of it, and
a crash of every query at every place: about an hour on one core.
"""

from __future__ import annotations

import os
import random
from itertools import product

import pytest

from pipelines.nexmark.queries import NAMES
from pipelines.nexmark.runs import BY_WALL_CLOCK, QueryRun, Setting

BACKENDS = ("hashmap", "rocksdb", "delta")
MATRIX = [*product((1, 7, 30), (1, 2, 5), BACKENDS)]
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


@pytest.mark.parametrize("query", NAMES)
def test_a_query_gives_what_sql_gives(query, inputs):
    assert_as_sql(query, inputs, *random.Random(query).choice(SMALL_MATRIX))


@pytest.mark.parametrize("query", random.Random(7).sample([name for name in NAMES if name not in BY_WALL_CLOCK], 2))
def test_a_crash_changes_no_result(query, inputs):
    chance = random.Random(query)
    assert_as_sql(query, inputs, 2, 2, "rocksdb", crash_at=f"{chance.choice(PLACES)}:{chance.randint(1, 2)}")


WHOLE = os.environ.get("HEADRACE_NEXMARK") == "all"
CRASHING = [name for name in NAMES if name not in BY_WALL_CLOCK]


def played(query):
    """The places in the matrix: all values of two of its sides together, and each third of it for a third of the queries."""
    turn = int(query[1:])
    for case in MATRIX:
        places = (1, 7, 30).index(case[0]), (1, 2, 5).index(case[1]), BACKENDS.index(case[2])
        if WHOLE or sum(places) % 3 == turn % 3:
            yield (query, *case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "batches", "parallelism", "backend"), [case for query in NAMES for case in played(query)]
)
def test_the_matrix_gives_what_sql_gives(query, batches, parallelism, backend, inputs):
    assert_as_sql(query, inputs, batches, parallelism, backend)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "place"),
    [(query, place) for query in CRASHING for place in (PLACES if WHOLE else random.Random(query).sample(PLACES, 2))],
)
def test_no_crash_anywhere_changes_a_result(query, place, inputs):
    visit = random.Random(f"{query} {place}").randint(1, 7)
    assert_as_sql(query, inputs, 7, 2, "hashmap", crash_at=f"{place}:{visit}")
