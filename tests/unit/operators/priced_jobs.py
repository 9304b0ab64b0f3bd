"""Records and results of joins by event time, for the tests of them; `pipeline` is what tasks of Spark load."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import JoinType, Lifetime, Pipeline, Struct, Timestamp
from headrace.operators import Calendar, CalendarUnit, Min, Rank, RowNumber, Session, Sum, Tumbling


class Order(Struct, frozen=True):
    currency: str | None
    at: Timestamp
    cents: int


class Rate(Struct, frozen=True):
    currency: str | None
    at: Timestamp
    rate: int


class Priced(Struct, frozen=True):
    currency: str | None
    at: Timestamp | None
    cents: int | None
    rate: int | None

    @classmethod
    def of(cls, order: Order | None, rate: Rate | None) -> Priced:
        currency = order.currency if order is not None else rate and rate.currency
        return cls(currency, order and order.at, order and order.cents, rate and rate.rate)


class Largest(Struct, frozen=True):
    currency: str | None
    rank: Annotated[int, Rank()]
    cents: int


class Visit(Struct, frozen=True):
    currency: str | None
    window_start: Timestamp
    cents: Annotated[int, Sum("cents")]


class Recent(Struct, frozen=True):
    currency: str | None
    at: Timestamp
    rank: Annotated[int, RowNumber()]
    cents: Annotated[int, Sum("cents")]


def is_as_low(order: Order, rate: Rate) -> bool:
    return rate.rate <= order.cents // 8


SECOND = Tumbling(timedelta(seconds=1))
LAG = timedelta(seconds=4)
pipeline = Pipeline("priced_orders")
_orders = pipeline.source("orders", Order, event_time="at", out_of_orderness=LAG).key_by("currency")
_rate_changes = pipeline.source("rates", Rate, event_time="at", out_of_orderness=LAG)
_rates = _rate_changes.key_by("currency")
_orders.join_as_of("priced", _rates, emit=Priced.of, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER).sink("priced")
_orders.window(SECOND).join("both", _rates.window(SECOND), emit=Priced.of, how=JoinType.FULL).sink("both")
_orders.join(
    "near", _rates, emit=Priced.of, how=JoinType.FULL, within=(timedelta(milliseconds=-50), timedelta(milliseconds=150))
).sink("near")
_orders.window(SECOND).semi_join("known", _rates.window(SECOND)).sink("known")
_orders.window(Session(timedelta(milliseconds=150))).aggregate(
    "visits", Visit, early=timedelta(milliseconds=40)
).upsert_materialize("whole", primary_key=("currency", "window_start"), upsert_key=("currency", "window_start")).sink(
    "visits"
)
_orders.over("recent", Recent, rows=3, state_ttl=Lifetime.FOREVER).sink("recent")
_rate_changes.apply_changes("current_rates", key="currency", sequence_by=("at", "rate")).sink(
    "current_rates", key="currency"
)
_unrated = _orders.anti_join("unrated", _rates, on=is_as_low, state_ttl=Lifetime.FOREVER)
_unrated.key_by("currency").aggregate("unrated_orders", state_ttl=Lifetime.FOREVER, cents=Min("cents")).sink(
    "unrated_orders", key="currency"
)
_orders.window(Calendar(CalendarUnit.DAY, zone="Europe/Berlin")).aggregate("days", cents=Sum("cents")).sink("days")
_orders.window(SECOND).top("seconds", 2, by="cents", result=Largest).sink("seconds")
_orders.top("largest", 3, by="cents", result=Largest, state_ttl=Lifetime.FOREVER).upsert_materialize(
    "latest", primary_key=("currency", "rank"), upsert_key=("currency", "rank")
).sink("largest")
