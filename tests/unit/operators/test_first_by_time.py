"""The first and the last record of each key by event time: equal to min and max after each record."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Lifetime, Pipeline, RowKind
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.ranked_jobs import Best, Score, scores
from tests.unit.support.changelog_table import by_fields, table_of

INSERT, BEFORE, AFTER, DELETE = RowKind
SCORES = st.builds(Score, st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 9), st.sampled_from("xyz"))
HOUR = 3_600_000
KEPT = {"state_ttl": Lifetime.FOREVER}


def harness_of(method, *, backend="hashmap", **options):
    function = getattr(scores(), method)("kept", **KEPT | options).operators[-1].function
    return KeyedHarness(function, key=attrgetter("game"), backend=backend)


def give(harness, *given, kind=INSERT):
    for score in given:
        harness.process(score, timestamp=score.at, kind=kind)
    harness.drain()
    return harness.kinds()


def expected(method, given):
    """Return the remaining record of each game.

    `min` takes the first of equal records, and so does `max` over the records in reverse order.
    """
    games = {score.game: [other for other in given if other.game == score.game] for score in given}
    if method == "first_by_time":
        return by_fields([min(rows, key=attrgetter("at")) for rows in games.values()])
    return by_fields([max(reversed(rows), key=attrgetter("at")) for rows in games.values()])


@pytest.mark.parametrize("method", ["first_by_time", "last_by_time"])
@given(given=st.lists(SCORES, max_size=20))
def test_each_record_leaves_the_result_of_a_loop(method, given):
    with harness_of(method) as harness:
        for number, score in enumerate(given, 1):
            assert table_of(give(harness, score), Score) == expected(method, given[:number])


@given(events=st.lists(SCORES | st.integers(0, 9), max_size=25))
def test_watermark_makes_the_first_final(events):
    arrived, final, watermark = [], {}, -1
    with harness_of("first_by_time", at_watermark=True) as harness:
        for event in [*events, 99]:
            if isinstance(event, int):
                watermark = max(watermark, event)
                harness.watermark(watermark)
            else:
                arrived += [event] if event.at > watermark else []  # a late one is dropped
                give(harness, event)
            for row in expected("first_by_time", arrived):
                if row.at <= watermark:
                    final.setdefault(row.game, row)
            assert [kind for kind, _ in harness.kinds()] == [INSERT] * len(final)
            assert table_of(harness.kinds(), Score) == by_fields(final.values())


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
@pytest.mark.parametrize("at_watermark", [False, True])
def test_first_survives_a_restart(backend, at_watermark):
    options = {"at_watermark": at_watermark}
    with harness_of("first_by_time", backend=backend, **options) as harness:
        before = give(harness, Score("a", 5, 1))
        snapshot = harness.snapshot()
    function = scores().first_by_time("kept", **KEPT, **options).operators[-1].function
    with KeyedHarness.restore(snapshot, function, key=attrgetter("game"), backend=backend) as restored:
        give(restored, Score("a", 3, 2), Score("a", 4, 3))
        restored.watermark(9)
        after = restored.kinds()
    assert table_of([*before, *after], Score) == [Score("a", 3, 2)]


def test_earlier_record_retracts_the_former_first():
    late, early = Score("a", 5, 1), Score("a", 3, 2)
    with harness_of("first_by_time") as harness:
        assert give(harness, late, early) == [(INSERT, late), (BEFORE, late), (AFTER, early)]
        emitted = [emitted_record.timestamp for emitted_record in harness._process.emitted]
    assert emitted == [5, 5, 3]


def test_duration_frees_the_row():
    with harness_of("first_by_time", state_ttl=timedelta(hours=1)) as harness:
        give(harness, Score("a", 0, 1))
        harness.watermark(HOUR)
        assert give(harness, Score("a", HOUR, 2))[1:] == [(INSERT, Score("a", HOUR, 2))]


@pytest.mark.parametrize("method", ["first_by_time", "last_by_time"])
def test_retractions_are_refused(method):
    with pytest.raises(ValueError, match=rf"{method} 'kept': the stream may take records back"):
        getattr(scores(row_kind="kind"), method)("kept")
    with harness_of(method) as harness, pytest.raises(UserFunctionError, match=f"{method} cannot take a record back"):
        give(harness, Score("a", 0, 1), kind=DELETE)
    with pytest.raises(ValueError, match=rf"{method} 'kept': 'scores' needs a key"):
        getattr(Pipeline("p").source("scores", Score, event_time="at"), method)("kept")


def test_top_n_uses_the_corrected_first_records():
    """`last_by_time` cannot do this: its input retracts records."""
    last = scores().last_by_time("last", **KEPT)
    stream = last.key_by("game").top("first", 1, by="points", result=Best, **KEPT)
    harness = PipelineHarness(stream.upsert_materialize("m", primary_key=("game", "rank")).sink("best"), bucket=1)
    harness.feed("scores", [Score("a", 1, 9), Score("a", 3, 2), Score("a", 2, 5)])
    harness.run()
    assert harness.sink("best") == [Best("a", "", 2, 1)]
