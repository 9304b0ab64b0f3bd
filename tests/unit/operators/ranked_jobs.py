"""Records, results and pipelines of rankings, for the tests of them; `pipeline` is what tasks of Spark load."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.operators import Rank, Tumbling


class Score(Struct, frozen=True):
    game: str
    at: Timestamp
    points: int | None
    player: str = ""


class Best(Struct, frozen=True):
    game: str
    player: str
    points: int | None
    rank: Annotated[int, Rank()]


class BestOfWindow(Struct, frozen=True):
    window_start: Timestamp
    game: str
    player: str
    points: int | None
    rank: Annotated[int, Rank()]


def scores(*, row_kind=None, lag=0):
    source = Pipeline("games").source(
        "scores", Score, event_time="at", row_kind=row_kind, out_of_orderness=timedelta(milliseconds=lag)
    )
    return source.key_by("game")


def ranked(rows, n, *, descending=True):
    """Return the first rows of (arrival, score), with the smallest null: by points, event time and arrival."""

    def order(row):
        number, score = row
        points = -(1 << 40) if score.points is None else score.points
        return (-points if descending else points, score.at, number)

    return [score for _, score in sorted(rows, key=order)[:n]]


def ranked_with_ties(rows, n):
    """Return (rank, score) of all rows up to a rank, as `RANK() <= n` of SQL: largest points first, null last."""
    scores = ranked(rows, len(rows))
    points = [score.points for score in scores]
    ranks = [points.index(score.points) + 1 for score in scores]
    return [(rank, score) for rank, score in zip(ranks, scores, strict=True) if rank <= n]


def best(rows, n, **options):
    """The results of the rows of one game."""
    first = ranked(rows, n, **options)
    return [Best(score.game, score.player, score.points, rank) for rank, score in enumerate(first, 1)]


pipeline = (
    scores()
    .top("best", 2, by="points", result=Best, state_ttl=Lifetime.FOREVER)
    .upsert_materialize("latest", primary_key=("game", "rank"), upsert_key=("game", "rank"))
    .sink("best")
)
windowed = scores().window(Tumbling(timedelta(seconds=10))).top("best", 2, by="points", result=BestOfWindow)
