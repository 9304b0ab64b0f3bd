"""The first records of windows equal sorting, with late records, retractions and early results."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from operator import attrgetter
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind, Struct, Timestamp
from headrace.operators import Count, Cumulative, Hopping, Rank, Session, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.ranked_jobs import BestOfWindow, Score, ranked, ranked_with_ties, scores
from tests.unit.operators.window_jobs import Bid
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import LateModel, windows_of

INSERT, BEFORE, AFTER, DELETE = RowKind
SCORES = st.builds(
    Score, st.sampled_from("ab"), st.integers(-20, 30), st.none() | st.integers(-2, 2), st.sampled_from("xyz")
)
EVENTS = st.lists(st.tuples(SCORES, st.booleans()) | st.integers(-20, 40), max_size=30)
FAR = 1000


def ms(number):
    return timedelta(milliseconds=number)


def first_of(rows, n, *, ties):
    """Return (rank, score) of the first rows."""
    return ranked_with_ties(rows, n) if ties else enumerate(ranked(rows, n), 1)


SLICED = st.sampled_from([Tumbling(ms(10)), Hopping(ms(10), ms(5)), Cumulative(ms(12), ms(4))])


def harness_of(windows, n=2, *, row_kind=None, **options):
    stream = scores(row_kind=row_kind).window(windows).top("best", n, by="points", result=BestOfWindow, **options)
    return KeyedHarness(stream.operators[-1].function, key=attrgetter("game"))


def change(held, row, *, is_retraction):
    """Add a row, or remove the first row with its record."""
    if not is_retraction:
        held.append(row)
    elif (same_row := next((other for other in held if other[1] == row[1]), None)) is not None:
        held.remove(same_row)


@examples(25)
@given(
    windows=SLICED,
    events=EVENTS,
    n=st.integers(1, 3),
    lateness=st.sampled_from([0, 7]),
    early=st.none() | st.integers(1, 6),
    ties=st.booleans(),
)
@pytest.mark.parametrize("retracting", [False, True])
def test_ranked_windows_equal_sorting(retracting, windows, events, n, lateness, early, ties):
    rows, watermark = defaultdict(list), -FAR
    options = {"allowed_lateness": ms(lateness), "early": early and ms(early), "ties": ties}
    with harness_of(windows, n, row_kind="kind" if retracting else None, **options) as harness:
        for number, event in enumerate([*events, FAR]):
            if isinstance(event, int):
                watermark = max(watermark, event)
                harness.watermark(watermark)
                continue
            score, is_retraction = event[0], event[1] and retracting
            for window in windows_of(windows, score.at):
                if window[1] - 1 + lateness > watermark:
                    change(rows[score.game, window], (number, score), is_retraction=is_retraction)
            harness.process(score, timestamp=score.at, kind=DELETE if is_retraction else INSERT)
        expected = [
            BestOfWindow(start, score.game, score.player, score.points, rank)
            for (_, (start, _)), held in rows.items()
            for rank, score in first_of(held, n, ties=ties)
        ]
        assert table_of(harness.kinds(), BestOfWindow) == by_fields(expected)
        assert harness.snapshot().entries == ()


def test_window_emits_its_ranks_once():
    with harness_of(Tumbling(ms(10))) as harness:
        for at in range(5):
            harness.process(Score("a", at, at), timestamp=at)
        harness.watermark(9)
        assert harness.kinds() == [
            (INSERT, BestOfWindow(0, "a", "", 4, 1)),
            (INSERT, BestOfWindow(0, "a", "", 3, 2)),
        ]


def test_sessions_rank_their_records():
    with harness_of(Session(ms(5)), n=1, allowed_lateness=ms(50)) as harness:
        for at in (0, 8):
            harness.process(Score("a", at, at), timestamp=at)
        harness.watermark(20)
        harness.process(Score("a", 4, 4), timestamp=4)
        one, other = BestOfWindow(0, "a", "", 0, 1), BestOfWindow(8, "a", "", 8, 1)
        assert harness.kinds()[:4] == [(INSERT, one), (INSERT, other), (DELETE, one), (DELETE, other)]
        assert harness.kinds()[4:] == [(INSERT, BestOfWindow(0, "a", "", 8, 1))]


def give(harness, *scores):
    """Give a harness scores of game "a", as (at, points) pairs."""
    for at, points in scores:
        harness.process(Score("a", at, points), timestamp=at)


def row(points, rank, start=0):
    return BestOfWindow(start, "a", "", points, rank)


def test_ties_share_a_rank():
    with harness_of(Tumbling(ms(10)), n=3, ties=True) as harness:
        give(harness, (0, 5), (1, 7), (2, 4), (3, 7), (4, 5), (5, 5))
        harness.watermark(9)
        assert harness.kinds() == [(INSERT, row(*result)) for result in [(7, 1), (7, 1), (5, 3), (5, 3), (5, 3)]]


def test_late_tie_is_inserted_alone():
    with harness_of(Tumbling(ms(10)), n=1, ties=True, allowed_lateness=ms(20)) as harness:
        give(harness, (3, 7), (4, 6))
        harness.watermark(9)
        give(harness, (1, 7))
        assert harness.kinds() == [(INSERT, row(7, 1)), (INSERT, row(7, 1))]


def test_late_winner_deletes_all_ties():
    with harness_of(Tumbling(ms(10)), n=1, ties=True, allowed_lateness=ms(20)) as harness:
        give(harness, (3, 7), (4, 7))
        harness.watermark(9)
        give(harness, (1, 8))
        assert harness.kinds()[2:] == [(DELETE, row(7, 1)), (DELETE, row(7, 1)), (INSERT, row(8, 1))]


def test_late_record_behind_ties_changes_nothing():
    with harness_of(Tumbling(ms(10)), n=2, ties=True, allowed_lateness=ms(20)) as harness:
        give(harness, (3, 7), (4, 7))
        harness.watermark(9)
        give(harness, (1, 6))
        assert harness.kinds() == [(INSERT, row(7, 1)), (INSERT, row(7, 1))]


def test_retracted_tie_makes_room_for_next_value():
    with harness_of(Tumbling(ms(10)), n=2, ties=True, row_kind="kind") as harness:
        give(harness, (0, 5), (1, 7), (2, 7), (3, 5))
        harness.process(Score("a", 1, 7), timestamp=1, kind=DELETE)
        harness.watermark(9)
        assert harness.kinds() == [(INSERT, row(7, 1)), (INSERT, row(5, 2)), (INSERT, row(5, 2))]


@examples(25)
@given(
    events=st.lists(SCORES | st.integers(-20, 40), max_size=30),
    n=st.integers(1, 3),
    lateness=st.sampled_from([0, 7]),
    early=st.none() | st.integers(1, 6),
)
def test_ties_of_sessions_equal_sorting(events, n, lateness, early):
    options = {"allowed_lateness": ms(lateness), "early": early and ms(early), "ties": True}
    model = LateModel(Session(ms(6)), lateness, key=attrgetter("game"))
    with harness_of(model.windows, n, **options) as harness:
        for event in [*events, FAR]:
            if isinstance(event, int):
                model.watermark = max(model.watermark, event)
                harness.watermark(model.watermark)
            else:
                model.take(event)
                harness.process(event, timestamp=event.at)
        expected = [
            BestOfWindow(start, game, score.player, score.points, rank)
            for (game, start, _), rows in model.groups.items()
            for rank, score in ranked_with_ties([(number, score) for number, score, _ in rows], n)
        ]
        assert table_of(harness.kinds(), BestOfWindow) == by_fields(expected)
        assert harness.snapshot().entries == ()


def test_results_of_windows_are_ranked_by_window():
    """The page's query 5 of Nexmark: the hottest items of each window."""

    class Hot(Struct, frozen=True):
        window_end: Timestamp
        item: str
        bids: int
        rank: Annotated[int, Rank()]

    class Bids(Struct, frozen=True):
        item: str
        window_start: Timestamp
        window_end: Timestamp
        bids: Annotated[int, Count()]

    source = Pipeline("p").source("bids", Bid, event_time="at")
    counts = source.key_by("item").window(Hopping(ms(10), ms(5))).aggregate("counts", Bids)
    hot = counts.key_by("window_end").window(Tumbling(ms(5))).top("hot", 1, by="bids", result=Hot)
    harness = PipelineHarness(hot.sink("hot"), bucket=1)
    harness.feed("bids", [Bid("a", 1, 1), Bid("b", 2, 1), Bid("b", 7, 1)])
    harness.run(end_of_input=True)
    result = sorted((row.window_end, row.item, row.bids, row.rank) for row in harness.sink("hot"))
    assert result == [(5, "a", 1, 1), (10, "b", 2, 1), (15, "b", 1, 1)]
