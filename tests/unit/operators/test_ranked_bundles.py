"""Rankings of windows take the records of a bundle together: what is stored is the same as one by one."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import RowKind
from headrace.api.options import Ranks
from headrace.errors import UserFunctionError
from headrace.operators import Tumbling
from headrace.operators._accumulators import BundledChanges
from headrace.operators._window_results import RankedWindow, WindowResult
from headrace.testing import PipelineHarness
from tests.unit.operators.ranked_jobs import BestOfWindow, Score, scores
from tests.unit.operators.test_ranked_windows import SCORES, ms
from tests.unit.operators.test_record_bundles import SLICED, equal_single_records
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
TIED = st.builds(Score, st.just("a"), st.integers(0, 3), st.none() | st.integers(0, 2), st.sampled_from("xyz"))
BUNDLES = st.lists(st.lists(TIED, min_size=1, max_size=8), max_size=4)
RANKS = st.builds(
    Ranks, st.integers(1, 5), by=st.just("points"), descending=st.booleans(), ties=st.booleans(), result=st.none()
)


def changes_of(rows, current):
    """Return (score, kind) rows as changes of a bundle, whose current records are added to a list."""
    records = [SimpleNamespace(record=score, timestamp=score.at, kind=int(kind)) for score, kind in rows]
    bundle = SimpleNamespace(work_on=current.append, quarantine=lambda _: None, current=SimpleNamespace(kind=DELETE))
    return BundledChanges(bundle, records)


def assert_equal_one_by_one(window, bundles):
    together, one_by_one = window.create(), window.create()
    for rows in bundles:
        current = []
        changes = changes_of(rows, current)
        together = window.add_together(changes, together)
        one_by_one = WindowResult.add_together(window, changes_of(rows, []), one_by_one)
        assert together == one_by_one
        assert current[-1] is changes.records[-1]


@examples(50)
@given(ranks=RANKS, bundles=BUNDLES, retracting=st.booleans())
@example(Ranks(2, "points", ties=True), [[Score("a", at, 1) for at in (2, 1, 2, 3)], [Score("a", 0, 0)]], False)
def test_bundle_of_inserts_equals_one_by_one(ranks, bundles, retracting):
    window = RankedWindow(Score, ranks, retracting=retracting)
    assert_equal_one_by_one(window, [[(score, INSERT) for score in scores] for scores in bundles])


@given(ranks=RANKS, bundles=st.lists(st.lists(st.tuples(TIED, st.sampled_from(RowKind)), min_size=1), max_size=4))
def test_bundle_with_retractions_equals_one_by_one(ranks, bundles):
    assert_equal_one_by_one(RankedWindow(Score, ranks, retracting=True), bundles)


@given(ranks=RANKS, before=st.lists(TIED), after=st.lists(TIED), retracting=st.booleans())
def test_merged_rows_are_those_of_all_records(ranks, before, after, retracting):
    window = RankedWindow(Score, ranks, retracting=retracting)

    def part_of(records):
        part = window.create()
        return window.add_together(changes_of([(record, INSERT) for record in records], []), part) if records else part

    assert window.merge(part_of(before), part_of(after)) == part_of(before + after)


@pytest.mark.parametrize("ties", [False, True])
def test_bundle_makes_no_row_behind_the_last(ties):
    window = RankedWindow(Score, Ranks(2, "points", ties=ties), retracting=False)
    rows = [(Score("a", at, points), INSERT) for at, points in enumerate([1, 9, 3, 9, 8, 9])]
    with mock.patch.object(window._ranking, "row", side_effect=window._ranking.row) as row:
        part = window.add_together(changes_of(rows, []), window.create())
    assert row.call_count == len(part.first) == (3 if ties else 2)


@pytest.mark.slow  # each example takes a second
@examples(2)
@given(
    windows=st.sampled_from(SLICED),
    records=st.lists(SCORES, min_size=2, max_size=40),
    n=st.integers(1, 3),
    ties=st.booleans(),
    lateness=st.sampled_from([0, 8]),
    seed=st.integers(0, 1 << 30),
)
def test_jobs_with_bundles_equal_those_without(windows, records, n, ties, lateness, seed):
    stream = scores(lag=5).window(windows)
    best = stream.top("best", n, by="points", result=BestOfWindow, ties=ties, allowed_lateness=ms(lateness))
    assert equal_single_records(best.sink("best"), {"scores": records}, seed, sinks=("best",))


def test_error_names_its_record_of_bundle():
    def doubled(score: Score) -> int:
        return 1 << score.points

    harness = PipelineHarness(scores().window(Tumbling(ms(10))).top("best", 1, by=doubled).sink("best"))
    harness.feed("scores", [Score("a", at, points) for at, points in enumerate([1, 2, 64, 4])])
    with pytest.raises(UserFunctionError, match='"points":64') as caught:
        harness.run()
    assert "more than 64 bits can hold" in str(caught.value)
