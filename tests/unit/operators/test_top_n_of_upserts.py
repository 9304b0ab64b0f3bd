"""A top-N of upserts equals sorting the last row of each key, with one stored row for each."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import permutations
from operator import attrgetter
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.errors import SourceError, StateSchemaError
from headrace.operators import Rank
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
HOUR = 3_600_000


class Score(Struct, frozen=True):
    game: str
    player: str
    at: Timestamp
    points: int | None = None


class Best(Struct, frozen=True):
    game: str
    player: str
    points: int | None
    rank: Annotated[int, Rank()]


def source():
    kinds = {"field": "kind", "+U": "+U", "-D": "-D"}
    return Pipeline("games").source("scores", Score, event_time="at", row_kind=kinds)


def upserts():
    return source().drop_update_before("game", "player")


def scores():
    return upserts().key_by("game")


def function_of(n, **options):
    options = {"by": "points", "result": Best, "state_ttl": Lifetime.FOREVER} | options
    return scores().top("best", n, **options).operators[-1].function


def harness_of(n, *, backend="hashmap", **options):
    return KeyedHarness(function_of(n, **options), key=attrgetter("game"), backend=backend)


def give(harness, *changes):
    for kind, score in changes:
        harness.process(score, timestamp=score.at, kind=kind)
    harness.drain()
    return harness.kinds()


class Model:
    """The last row of each key with its arrival; a row that equals it changes nothing."""

    def __init__(self):
        self.rows = {}
        self.unknown = 0
        self._arrived = 0

    def take(self, kind, score):
        self._arrived += 1
        key = score.game, score.player
        if kind.is_retraction:
            self.unknown += key not in self.rows
            self.rows.pop(key, None)
        elif key not in self.rows or self.rows[key][1] != score:
            self.rows[key] = self._arrived, score

    def best(self, n, record=Best):
        results = []
        for game in {game for game, _ in self.rows}:
            rows = sorted((row for row in self.rows.values() if row[1].game == game), key=_order)
            for rank, (_, score) in enumerate(rows[:n], 1):
                results.append(Best(score.game, score.player, score.points, rank) if record is Best else score)
        return by_fields(results)


def _order(row):
    arrived, score = row
    points = -(1 << 40) if score.points is None else score.points
    return -points, score.at, arrived


KINDS = st.sampled_from([INSERT, AFTER, AFTER, AFTER, DELETE])
SCORES = st.builds(
    Score, st.sampled_from("ab"), st.sampled_from("vwxyz"), st.integers(0, 9), st.none() | st.integers(-3, 3)
)
FEW = settings(max_examples=6)
CRASHES = [None, None, "task.half:1", "commit.before", "commit.after"]
CHANGES = st.lists(st.tuples(KINDS, SCORES), max_size=30)


@examples(100)
@given(changes=CHANGES, n=st.integers(1, 4), record=st.sampled_from([Best, Score]))
def test_each_upsert_leaves_the_sorted_top(changes, n, record):
    model = Model()
    with harness_of(n, result=None if record is Score else Best) as harness:
        for kind, score in changes:
            model.take(kind, score)
            assert table_of(give(harness, (kind, score)), record) == model.best(n, record)
        assert len(harness.quarantined()) == model.unknown
        assert stored_rows(harness) == by_fields([score for _, score in model.rows.values()])


def stored_rows(harness):
    """Return the stored records; those behind the first ones have a place each."""
    records = []
    for game in "ab":
        rest = harness.state("rest", game) or {}
        behind = [(order, row.record) for order, rows in rest.items() for row in rows]
        places = harness.state("places", game) or {}
        assert sorted(places.values()) == sorted(order for order, _ in behind)
        records += [row.record for row in harness.state("top", game) or ()]
        records += [record for _, record in behind]
    return by_fields(records)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def backend(request):
    return request.param


@pytest.mark.slow
@FEW
@given(changes=CHANGES, seed=st.integers(0, 1 << 30), n=st.integers(1, 3))
def test_splits_and_crashes_change_no_tops(changes, seed, n):
    chance = random.Random(seed)
    model, harnesses = Model(), []
    for stream in (upserts(), source().normalize("whole", key=("game", "player"))):
        top = stream.key_by("game").top("best", n, by="points", result=Best, state_ttl=Lifetime.FOREVER)
        job = top.upsert_materialize("latest", primary_key=("game", "rank")).sink("best")
        harnesses.append(PipelineHarness(job, bucket=1, parallelism=chance.choice([1, 2])))
    for kind, score in changes:
        model.take(kind, score)
    rest = [(AFTER if kind is INSERT else kind, score) for kind, score in changes]
    while rest:
        size = chance.randint(3, 9)
        for harness in harnesses:
            harness.feed("scores", [score for _, score in rest[:size]], kinds=[kind for kind, _ in rest[:size]])
            harness.run(crash_at=chance.choice(CRASHES))
        rest = rest[size:]
    for harness in harnesses:
        harness.run()
        assert by_fields(harness.sink("best")) == model.best(n)


def test_leader_that_stays_first_leaves_the_rest_alone():
    with harness_of(2) as harness:
        give(harness, *((AFTER, Score("a", player, 0, points)) for points, player in enumerate("vwxyz")))
        before = harness.statistics().requests
        give(harness, (AFTER, Score("a", "z", 1, 9)))
        assert harness.statistics().requests - before <= 2
        assert [row.record.points for row in harness.state("top", "a")] == [9, 3]


def test_deletion_needs_the_key_alone():
    with harness_of(1) as harness:
        give(harness, (AFTER, Score("a", "v", 0, 5)), (AFTER, Score("a", "w", 0, 3)), (AFTER, Score("a", "x", 0, 1)))
        changes = give(harness, (DELETE, Score("a", "w", 9)), (DELETE, Score("a", "v", 9)))
        assert table_of(changes, Best) == [Best("a", "x", 1, 1)]
        give(harness, (DELETE, Score("a", "x", 9)))
        assert harness.snapshot().entries == ()


def test_deletion_of_an_unknown_key_is_set_aside(backend):
    with harness_of(1, backend=backend) as harness:
        assert give(harness, (DELETE, Score("a", "v", 0))) == []
        ((record, reason),) = harness.quarantined()
    assert record == Score("a", "v", 0)
    assert "a retraction (-D) that matches none" in reason


def test_side_output_gets_no_made_up_values():
    """A deletion may lack all but its key, unless it may go to the side output."""
    kinds = {"field": "kind", "+U": "+U", "-D": "-D"}
    stream = Pipeline("games").source("scores", Point, event_time="at", row_kind=kinds)
    top = stream.drop_update_before("game", "player").key_by("game")
    top = top.top("best", 1, by="points", state_ttl=Lifetime.FOREVER).side_output("unmatched", Point, sink="unmatched")
    harness = PipelineHarness(top.upsert_materialize("latest", primary_key="game").sink("best"))
    deletion = {"game": ["a"], "player": ["v"], "points": pa.nulls(1, pa.int64()), "kind": ["-D"]}
    harness.feed_table("scores", pa.table({**deletion, "at": pa.array([0], pa.timestamp("ms", "UTC"))}))
    with pytest.raises(SourceError, match="points is null"):
        harness.run()


class Point(Score, frozen=True):
    points: int


def test_upserts_go_on_after_a_restart(backend):
    with harness_of(2, backend=backend) as harness:
        give(harness, *((AFTER, Score("a", player, at, at)) for at, player in enumerate("vwxyz")))
        snapshot = harness.snapshot()
    options = {"key": attrgetter("game"), "backend": backend}
    with KeyedHarness.restore(snapshot, function_of(2), **options) as restored:
        give(restored, (DELETE, Score("a", "z", 9)), (AFTER, Score("a", "v", 9, 7)))
        assert [row.record.player for row in restored.state("top", "a")] == ["v", "y"]


@pytest.mark.parametrize("points", [1, 2])
def test_expired_row_never_moves_up_again(points):
    """Its list lives longer: another row with the same points was added to it."""
    with harness_of(1, state_ttl=timedelta(hours=1)) as harness:
        give(harness, (AFTER, Score("a", "v", 0, 9)), (AFTER, Score("a", "w", 0, 1)))
        give(harness, (AFTER, Score("a", "x", HOUR - 1, 1)), (AFTER, Score("a", "v", HOUR - 1, 9)))
        harness.watermark(HOUR)
        give(harness, (AFTER, Score("a", "w", HOUR, points)), (DELETE, Score("a", "v", HOUR)))
        give(harness, (DELETE, Score("a", "w", HOUR)))
        assert [row.record.player for row in harness.state("top", "a")] == ["x"]
        give(harness, (DELETE, Score("a", "x", HOUR)))
        assert harness.state("top", "a") is None


def test_equal_upsert_lets_its_row_live_longer():
    with harness_of(1, state_ttl=timedelta(hours=1)) as harness:
        rows = [(AFTER, Score("a", "v", 0, 9)), (AFTER, Score("a", "w", 0, 1))]
        give(harness, *rows)
        for kind, score in rows:
            harness.process(score, timestamp=HOUR - 1, kind=kind)
        harness.watermark(HOUR)
        give(harness, (DELETE, Score("a", "v", HOUR)))
        assert [row.record.player for row in harness.state("top", "a")] == ["w"]


def test_results_are_unique_by_key_of_upserts():
    ranked, records = (
        scores().top("best", 2, by="points", result=result, state_ttl=Lifetime.FOREVER) for result in (Best, None)
    )
    assert ranked._changes.unique == (("game", "rank"),)
    assert records._changes.unique == (("game", "player"),)


@pytest.mark.parametrize("keeps_rank", [True, False])
def test_table_by_record_follows_all_ranks(keeps_rank):
    """For a moment, a record that moves up has its new rank and its old one."""
    top = scores().top("best", 3, by="points", result=Best, state_ttl=Lifetime.FOREVER)
    stream = top if keeps_rank else top.map(without_rank, record=Best, keeps=("game", "player", "points"))
    harness = PipelineHarness(stream.upsert_materialize("latest", primary_key=("game", "player")).sink("best"))
    rows = [Score("a", player, 0, points) for points, player in enumerate("xwv")]
    harness.feed("scores", rows, kinds=[AFTER] * 3)
    harness.run()
    harness.feed("scores", rows[2:], kinds=[DELETE])
    harness.run()
    best = [Best("a", "w", 1, 1), Best("a", "x", 0, 2)]
    assert by_fields(harness.sink("best")) == by_fields(best if keeps_rank else map(without_rank, best))


def without_rank(best):
    return replace(best, rank=0)


@pytest.mark.parametrize(
    ("stream", "mode"), [(lambda: source().drop_update_before("player"), "player"), (source, "unknown key")]
)
def test_upserts_without_their_old_rows_are_refused(stream, mode):
    message = rf"top 'best': the stream is upsert\({mode}\), and an update could leave the old row at another key"
    with pytest.raises(ValueError, match=message):
        stream().key_by("game").top("best", 2, by="points", state_ttl=Lifetime.FOREVER)


@pytest.mark.slow
def test_rows_of_another_key_are_refused():
    whole = source().normalize("whole", key=("game", "player")).key_by("game")
    forms = [
        whole.top("best", 2, by="points", result=Best, state_ttl=Lifetime.FOREVER),
        scores().top("best", 2, by="points", result=Best, state_ttl=Lifetime.FOREVER),
        source()
        .drop_update_before("game")
        .key_by("game")
        .top("best", 2, by="points", result=Best, state_ttl=Lifetime.FOREVER),
    ]
    jobs = [form.upsert_materialize("latest", primary_key=("game", "rank")).sink("best") for form in forms]
    for before, after in permutations(jobs, 2):
        harness = PipelineHarness(before)
        harness.feed("scores", [Score("a", "v", 0, 1)], kinds=[AFTER])
        harness.run()
        harness.feed("scores", [Score("a", "v", 0, 2)], kinds=[AFTER])
        harness.change(pipeline=after)
        with pytest.raises(StateSchemaError, match="state 'top'"):
            harness.run()
