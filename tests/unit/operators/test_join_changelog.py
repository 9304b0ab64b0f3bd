"""The changelog of a join whose primary key differs from the join key, with and without a materializer (FLIP-544, "Motivation").

Users have a level, and levels have a name. A user's change of level leaves one join key and enters another; the table
is keyed by user. The FLIP's reference shows the result when the new row arrives before the retraction of the old row.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.testing import PipelineHarness

INSERT, BEFORE, AFTER, DELETE = RowKind


class User(Struct, frozen=True):
    id: int
    level: int
    at: Timestamp


class Level(Struct, frozen=True):
    id: int
    name: str
    at: Timestamp


class Named(Struct, frozen=True):
    id: int
    level: int
    name: str

    @classmethod
    def of(cls, user: User, level: Level) -> Named:
        return cls(user.id, user.level, level.name)


def harness_of(*, with_history, parallelism=1):
    """Without a history the last change of a primary key counts, as in a plain MERGE."""
    pipeline = Pipeline("levels")
    users = pipeline.source("users", User, event_time="at", row_kind="kind", out_of_orderness=timedelta(minutes=1))
    levels = pipeline.source("levels", Level, event_time="at", row_kind="kind", out_of_orderness=timedelta(minutes=1))
    upsert_key = None if with_history else ("id",)
    named = users.key_by("level").join("named", levels.key_by("id"), emit=Named.of, state_ttl=Lifetime.FOREVER)
    named.upsert_materialize("board", primary_key=("id",), upsert_key=upsert_key).sink("users_by_level")
    harness = PipelineHarness(pipeline, parallelism=parallelism, bucket=1)
    harness.feed("levels", [Level(10, "a1", 0), Level(20, "b1", 0)])
    harness.feed("users", [User(1, 10, 1)])
    return harness


OLD, NEW = User(1, 10, 1), User(1, 20, 2)
NAMELESS = User(1, 30, 2)
IN_ORDER = [(OLD, DELETE), (NEW, INSERT)]
OUT_OF_ORDER = [*reversed(IN_ORDER)]


def change_level(harness, changes, *, at_once):
    for part in [changes] if at_once else [[change] for change in changes]:
        records, kinds = zip(*part, strict=True)
        harness.feed("users", records, kinds=kinds)
        harness.run()
    harness.run(end_of_input=True)
    return harness.sink("users_by_level")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_with_a_history_the_new_row_stays(parallelism, at_once):
    harness = harness_of(with_history=True, parallelism=parallelism)
    assert change_level(harness, OUT_OF_ORDER, at_once=at_once) == [Named(1, 20, "b1")]
    assert harness.table("quarantine").num_rows == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_without_a_history_the_row_disappears(at_once):
    assert change_level(harness_of(with_history=False), OUT_OF_ORDER, at_once=at_once) == []


@pytest.mark.parametrize("with_history", [True, False])
def test_shuffle_does_not_disorder_changes(with_history):
    harness = harness_of(with_history=with_history, parallelism=3)
    assert change_level(harness, IN_ORDER, at_once=True) == [Named(1, 20, "b1")]


@pytest.mark.parametrize("with_history", [True, False])
def test_level_without_a_name_ends_the_row(with_history):
    """The old row of an update deletes its key; here the new row never arrives."""
    harness = harness_of(with_history=with_history)
    assert change_level(harness, [(OLD, BEFORE), (NAMELESS, AFTER)], at_once=True) == []


@pytest.mark.parametrize(("with_history", "expected"), [(True, [Named(1, 10, "a1")]), (False, [])])
def test_retraction_restores_the_other_row(with_history, expected):
    """One user has two levels, so the primary key does not distinguish the rows."""
    harness = harness_of(with_history=with_history)
    assert change_level(harness, [(NEW, INSERT), (NEW, DELETE)], at_once=False) == expected
