"""The examples of docs/ranking.md are pipelines, and give the documented results."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import Lifetime, Pipeline, RowKind
from headrace.operators import Tumbling
from headrace.testing import PipelineHarness
from tests.unit.support.doc_pages import page_module

MINUTE = 60_000


@pytest.fixture
def page(monkeypatch):
    return page_module("ranking", monkeypatch)


def run(pipeline, source, records):
    harness = PipelineHarness(pipeline, bucket=1)
    harness.feed(source, records)
    harness.run(end_of_input=True)
    return harness


def test_example_ranks_the_best(page):
    records = [
        page.Score("chess", at, name, points) for at, name, points in [(1, "ann", 50), (2, "bob", 70), (3, "cy", 40)]
    ]
    rows = run(page.best, "scores", records).sink("best")
    assert sorted((row.rank, row.player, row.points) for row in rows) == [(1, "bob", 70), (2, "ann", 50)]


def test_without_ranks_page_emits_best_records(page):
    records = [page.Score("chess", at, "ann", points) for at, points in [(1, 50), (2, 70), (3, 60)]]
    scores = Pipeline("two_best").source("scores", page.Score, event_time="at").key_by("game")
    two = scores.top("two", 2, by="points", state_ttl=Lifetime.FOREVER)
    two_best = two.upsert_materialize("latest", primary_key=("game", "player", "at")).sink("two_best")
    rows = run(two_best, "scores", records).sink("two_best")
    assert sorted(row.points for row in rows) == [60, 70]


def test_upserts_move_their_rows(page):
    kinds = {"field": "op", "u": "+U", "d": "-D"}
    scores = Pipeline("current_scores").source("scores", page.Score, event_time="at", row_kind=kinds)
    current = scores.drop_update_before("game", "player").key_by("game")
    leaders = current.top("leaders", 2, by="points", result=page.Best, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(leaders.sink("leaders", key=("game", "rank")), bucket=1)
    points = [("ann", 50), ("bob", 70), ("cy", 60), ("bob", 40)]
    records = [page.Score("chess", at, name, number) for at, (name, number) in enumerate(points)]
    harness.feed(
        "scores", [*records, page.Score("chess", 9, "ann", 0)], kinds=[RowKind.UPDATE_AFTER] * 4 + [RowKind.DELETE]
    )
    harness.run(end_of_input=True)
    rows = harness.sink("leaders")
    assert sorted((row.rank, row.player, row.points) for row in rows) == [(1, "cy", 60), (2, "bob", 40)]


def test_hottest_items_are_ranked_by_window(page):
    records = [page.Bid(item, at * MINUTE) for item, at in [("a", 1), ("b", 2), ("b", 7)]]
    rows = run(page.hot, "bids", records).sink("hot_items")
    result = sorted((row.window_end // MINUTE, row.rank, row.item, row.bids) for row in rows)
    assert result == [(5, 1, "a", 1), (5, 2, "b", 1), (10, 1, "b", 2), (10, 2, "a", 1), (15, 1, "b", 1)]


def test_winners_of_an_hour_include_ties(page):
    points = [("ann", 50), ("bob", 70), ("cy", 50), ("dee", 40), ("eve", 50)]
    records = [page.Score("chess", at * MINUTE, name, number) for at, (name, number) in enumerate(points)]
    hours = Pipeline("winners").source("scores", page.Score, event_time="at").key_by("game")
    winners = hours.window(Tumbling(timedelta(hours=1))).top("winners", 2, by="points", ties=True, result=page.Best)
    rows = run(winners.sink("winners"), "scores", records).sink("winners")
    result = sorted((row.rank, row.player) for row in rows)
    assert result == [(1, "bob"), (2, "ann"), (2, "cy"), (2, "eve")]


def test_each_score_is_emitted_once(page):
    records = [page.Score("chess", at, "ann", points) for at, points in [(5, 1), (3, 2), (4, 3)]]
    scores = Pipeline("scores_once").source(
        "scores", page.Score, event_time="at", out_of_orderness=timedelta(minutes=5)
    )
    once = scores.key_by("game", "player").first_by_time("once", at_watermark=True, state_ttl=timedelta(days=7))
    rows = run(once.sink("scores_once"), "scores", records).sink("scores_once")
    assert [(row.at, row.points) for row in rows] == [(3, 2)]
