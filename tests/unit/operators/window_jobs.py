"""Records, results and pipelines of windows, for the tests of them; `pipeline` is what tasks of Spark load."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import AggregateFunction, Pipeline, Struct, TimeDomain, Timestamp
from headrace.operators import ArgMax, ArgMin, Avg, Count, CountDistinct, First, Last, Max, Min, Sum, Tumbling


class Bid(Struct, frozen=True):
    item: str
    at: Timestamp
    price: int | None
    bidder: str = ""


class Texts(Struct):
    all: list[str]


class Joined(AggregateFunction[Bid, Texts, str]):
    """Joins the bidders in alphabetical order. It changes accumulators in place, and returns them."""

    def create_accumulator(self):
        return Texts([])

    def add(self, value, accumulator, /):
        accumulator.all.append(value.bidder)
        return accumulator

    def get_result(self, accumulator, /):
        return "".join(sorted(accumulator.all))

    def merge(self, one, other, /):
        other.all += one.all
        return other


class Summary(Struct, frozen=True):
    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    priced: Annotated[int, Count("price")]
    total: Annotated[int | None, Sum("price")]
    lowest: Annotated[int | None, Min("price")]
    highest: Annotated[int | None, Max("price")]
    mean: Annotated[float | None, Avg("price")]
    bidders: Annotated[int, CountDistinct("bidder")]
    winner: Annotated[str | None, ArgMax("bidder", by="price")]
    loser: Annotated[str | None, ArgMin("bidder", by="price")]
    first: Annotated[str, First("bidder")]
    last: Annotated[int | None, Last("price")]
    large: Annotated[int, Count(where=lambda bid: (bid.price or 0) > 5)]
    latest: Annotated[Timestamp, Max("at")]
    joined: Annotated[str, Joined()]


class Totals(Struct, frozen=True):
    """Results that support retractions."""

    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    total: Annotated[int | None, Sum("price")]
    mean: Annotated[float | None, Avg("price")]
    bidders: Annotated[int, CountDistinct("bidder")]


def window_pipeline(
    windows,
    result=Summary,
    *,
    lag=0,
    late=False,
    lateness=0,
    row_kind=None,
    early=None,
    sink="summaries",
    only=None,
    time=TimeDomain.EVENT_TIME,
):
    """Return a pipeline of one window aggregation; lengths are in ms, and `only` is a predicate."""
    bids = Pipeline("bids").source(
        "bids", Bid, event_time="at", out_of_orderness=timedelta(milliseconds=lag), row_kind=row_kind
    )
    results = (
        (bids if only is None else bids.filter(only))
        .key_by("item")
        .window(windows, time=time)
        .aggregate(
            "summary",
            result,
            allowed_lateness=timedelta(milliseconds=lateness),
            early=timedelta(milliseconds=early) if isinstance(early, int) else early,
        )
    )
    if late:
        results = results.side_output("late", Bid, sink="late")
    return results.sink(sink)


pipeline = window_pipeline(Tumbling(timedelta(seconds=10)), lag=4000)
