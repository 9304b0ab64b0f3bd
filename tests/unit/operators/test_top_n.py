"""A top-N equals sorting after each record, with and without retractions."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from operator import attrgetter
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Emit, Lifetime, RowKind, Struct
from headrace.errors import UserFunctionError
from headrace.operators import Rank
from headrace.testing import KeyedHarness, PipelineHarness, SideRecord
from tests.unit.operators.ranked_jobs import Best, Score, best, ranked, scores
from tests.unit.support.changelog_table import by_fields, table_of

INSERT, BEFORE, AFTER, DELETE = RowKind
SCORES = st.builds(
    Score, st.sampled_from("ab"), st.integers(0, 9), st.none() | st.integers(-3, 3), st.sampled_from("xyz")
)
HOUR = 3_600_000


def function_of(n, *, side=False, **options):
    options = {"by": "points", "result": Best, "state_ttl": Lifetime.FOREVER} | options
    stream = scores().top("best", n, **options)
    if side:
        stream.side("unmatched", Score)
    return stream.operators[-1].function


def harness_of(n=2, *, backend="hashmap", side=False, **options):
    sides = {"unmatched": Score} if side else {}
    function = function_of(n, side=side, **options)
    return KeyedHarness(function, key=attrgetter("game"), backend=backend, side_outputs=sides)


def give(harness, *given, kind=INSERT):
    for score in given:
        harness.process(score, timestamp=score.at, kind=kind)
    harness.drain()
    return harness.kinds()


class Model:
    """The rows of each game in order of arrival."""

    def __init__(self):
        self.rows = defaultdict(list)
        self.unmatched = []
        self._arrived = 0

    def add(self, score):
        self._arrived += 1
        self.rows[score.game].append((self._arrived, score))

    def take_back(self, score):
        result = next((row for row in self.rows[score.game] if row[1] == score), None)
        if result is None:
            self.unmatched.append(score)
        else:
            self.rows[score.game].remove(result)

    def best(self, n, **options):
        return by_fields([score for rows in self.rows.values() for score in best(rows, n, **options)])

    def records(self, n):
        return by_fields([score for rows in self.rows.values() for score in ranked(rows, n)])


@given(given=st.lists(SCORES, max_size=25), n=st.integers(1, 4), descending=st.booleans())
def test_each_record_leaves_the_sorted_top(given, n, descending):
    model = Model()
    with harness_of(n, descending=descending) as harness:
        for score in given:
            model.add(score)
            assert table_of(give(harness, score), Best) == model.best(n, descending=descending)


@given(given=st.lists(st.tuples(SCORES, st.booleans()), max_size=30), n=st.integers(1, 4))
def test_each_retraction_leaves_the_sorted_top(given, n):
    model = Model()
    with harness_of(n, retracting=True, side=True) as harness:
        for score, is_addition in given:
            (model.add if is_addition else model.take_back)(score)
            changes = give(harness, score, kind=AFTER if is_addition else BEFORE)
            assert table_of(changes, Best) == model.best(n)
        assert [output.record for output in harness.output() if isinstance(output, SideRecord)] == model.unmatched


@given(given=st.lists(st.tuples(SCORES, st.booleans()), max_size=20))
def test_without_ranks_records_are_inserted_and_deleted(given):
    model = Model()
    with harness_of(2, retracting=True, result=None) as harness:
        for score, is_addition in given:
            (model.add if is_addition else model.take_back)(score)
            changes = give(harness, score, kind=INSERT if is_addition else DELETE)
            assert table_of(changes, Score) == model.records(2)
            assert {kind for kind, _ in changes} <= {INSERT, DELETE}


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def backend(request):
    return request.param


def test_better_record_moves_the_others_down(backend):
    with harness_of(backend=backend) as harness:
        give(harness, Score("a", 1, 5, "x"), Score("a", 2, 7, "y"))
        changes = give(harness, Score("a", 3, 4, "z"))
    first, second = Best("a", "y", 7, 1), Best("a", "x", 5, 2)
    before = Best("a", "x", 5, 1)
    assert changes == [(INSERT, before), (BEFORE, before), (AFTER, first), (INSERT, second)]


def test_ties_go_by_event_time_then_arrival(backend):
    with harness_of(3, backend=backend, result=None) as harness:
        give(harness, Score("a", 2, 5, "x"), Score("a", 1, 5, "y"), Score("a", 2, 5, "z"), Score("a", 2, 5, "w"))
        assert [row.record.player for row in harness.state("top", "a")] == ["y", "x", "z"]


def test_change_has_the_time_of_its_record():
    with harness_of() as harness:
        give(harness, Score("a", 1, 5, "x"), Score("a", 9, 7, "y"))
        emitted = [
            (emitted_record.timestamp, RowKind(emitted_record.kind)) for emitted_record in harness._process.emitted
        ]
    assert emitted == [(1, INSERT), (1, BEFORE), (9, AFTER), (1, INSERT)]


def test_ranks_survive_a_restart(backend):
    with harness_of(retracting=True, backend=backend) as harness:
        give(harness, *(Score("a", at, at) for at in range(5)))
        snapshot = harness.snapshot()
    options = {"key": attrgetter("game"), "backend": backend}
    with KeyedHarness.restore(snapshot, function_of(2, retracting=True), **options) as restored:
        changes = give(restored, Score("a", 4, 4), kind=DELETE)
    three, two = (lambda rank: Best("a", "", 3, rank)), (lambda rank: Best("a", "", 2, rank))
    assert changes == [
        (BEFORE, Best("a", "", 4, 1)),
        (AFTER, three(1)),
        (BEFORE, three(2)),
        (AFTER, two(2)),
    ]


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_changed_n_applies_at_the_next_record(before, after):
    with harness_of(before, retracting=True) as harness:
        changes = give(harness, *(Score("a", at, at) for at in range(6)))
        snapshot = harness.snapshot()
    with KeyedHarness.restore(snapshot, function_of(after, retracting=True), key=attrgetter("game")) as restored:
        changes = changes + give(restored, Score("a", 9, 9))
    model = Model()
    for score in [*(Score("a", at, at) for at in range(6)), Score("a", 9, 9)]:
        model.add(score)
    assert table_of(changes, Best) == model.best(after)


def test_smaller_number_deletes_ranks():
    with harness_of(3) as harness:
        changes = give(harness, *(Score("a", at, at) for at in range(3)))
        snapshot = harness.snapshot()
    with KeyedHarness.restore(snapshot, function_of(1), key=attrgetter("game")) as restored:
        changes = changes + give(restored, Score("a", 9, 9))
    assert table_of(changes, Best) == [Best("a", "", 9, 1)]


@pytest.mark.parametrize("points", [9, 1])
def test_retraction_may_have_another_event_time(points):
    """A process function emits a retraction with the time of its current record."""
    taken_back = Score("a", 3, points)
    with harness_of(1, retracting=True, side=True) as harness:
        give(harness, Score("a", 2, 5), taken_back)
        harness.process(taken_back, timestamp=8, kind=DELETE)
        assert table_of(harness.kinds(), Best) == [Best("a", "", 5, 1)]
        give(harness, Score("a", 2, 5), kind=DELETE)
        assert harness.snapshot().entries == ()


def test_full_retraction_leaves_no_state(backend):
    given = [Score("a", at, at % 3) for at in range(7)]
    with harness_of(retracting=True, backend=backend) as harness:
        give(harness, *given)
        assert table_of(give(harness, *given, kind=DELETE), Best) == []
        assert harness.snapshot().entries == ()


def test_expired_records_make_room():
    with harness_of(1, retracting=True, state_ttl=timedelta(hours=1)) as harness:
        give(harness, Score("a", 0, 9), Score("a", HOUR - 1, 5))
        harness.watermark(HOUR)
        changes = give(harness, Score("a", HOUR, 1))
    assert changes == [(INSERT, Best("a", "", 9, 1)), (INSERT, Best("a", "", 5, 1))]


def test_undeclared_retraction_fails():
    with (
        harness_of() as harness,
        pytest.raises(UserFunctionError, match=r"is -D: give top\(\) the argument retracting"),
    ):
        give(harness, Score("a", 1, 5), kind=DELETE)


FEW = settings(max_examples=4)
CRASHES = [None, None, "task.half:1", "commit.before", "commit.after"]


@pytest.mark.slow
@FEW
@given(given=st.lists(SCORES, min_size=1, max_size=12), seed=st.integers(0, 1 << 30), n=st.integers(1, 3))
def test_splits_tasks_and_crashes_change_nothing(given, seed, n):
    chance = random.Random(seed)
    stream = scores().top("best", n, by="points", result=Best, state_ttl=Lifetime.FOREVER)
    job = stream.upsert_materialize("latest", primary_key=("game", "rank"), upsert_key=("game", "rank")).sink("best")
    harness = PipelineHarness(job, bucket=chance.choice([1, 3]), parallelism=chance.choice([1, 2]))
    model, rest = Model(), given
    while rest:
        size = chance.randint(3, 7)
        harness.feed("scores", rest[:size])
        harness.run(crash_at=chance.choice(CRASHES))
        rest = rest[size:]
    harness.run()
    for score in given:
        model.add(score)
    assert by_fields(harness.sink("best")) == model.best(n)


def test_top_n_of_top_n_retracts():
    stream = scores().top("two", 2, by="points", state_ttl=Lifetime.FOREVER)
    last = stream.key_by(lambda score: score.game[:0]).top("one", 1, by="at", result=Best, state_ttl=Lifetime.FOREVER)
    job = last.upsert_materialize("every", primary_key=("rank",), emit=Emit.EVERY_CHANGE).sink("last")
    harness = PipelineHarness(job, bucket=1)
    harness.feed("scores", [Score("a", at, -at) for at in range(4)] + [Score("a", 4, 9)])
    harness.run()
    assert harness.sink("last") == [Best("a", "", 9, 1)]


class ByName(Struct, frozen=True, kw_only=True):
    rank: Annotated[int, Rank()]
    player: str
    points: int | None


class RankOnly(Struct, frozen=True):
    rank: Annotated[int, Rank()]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ByName, [ByName(rank=1, player="b", points=7), ByName(rank=2, player="a", points=3)]),
        (RankOnly, [RankOnly(1), RankOnly(2)]),
    ],
)
def test_results_of_any_form_have_their_ranks(result, expected):
    stream = scores().top("best", 2, by="points", result=result, state_ttl=Lifetime.FOREVER)
    ranked = stream.upsert_materialize("ranks", primary_key=("rank",), upsert_key=("rank",)).sink("best")
    harness = PipelineHarness(ranked)
    harness.feed("scores", [Score("g", at=1, points=3, player="a"), Score("g", at=2, points=7, player="b")])
    harness.run(end_of_input=True)
    assert sorted(harness.sink("best"), key=lambda best: best.rank) == expected
