"""Payments, results over their frames, and a plain model of them."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from typing import Annotated

import msgspec

from headrace import AggregateFunction, Late, Lifetime, Pipeline, Struct, Timestamp
from headrace.execution.process_context import END_OF_INPUT
from headrace.operators import (
    ArgMax,
    ArgMin,
    Avg,
    Count,
    CountDistinct,
    First,
    Lag,
    Last,
    Lead,
    Max,
    Min,
    RowNumber,
    Sum,
)
from headrace.testing import KeyedHarness

FAR = END_OF_INPUT
"""The watermark at the end of the input (ms)."""


class Payment(Struct, frozen=True):
    card: str
    at: Timestamp
    cents: int | None
    weight: float = 0.0
    seq: int = 0
    id: int = 0


class Ids(Struct):
    all: list[int]


class Joined(AggregateFunction[Payment, Ids, str]):
    """Joins the ids of payments in the order in which they come."""

    def create_accumulator(self):
        return Ids([])

    def add(self, value, accumulator, /):
        accumulator.all.append(value.id)
        return accumulator

    def get_result(self, accumulator, /):
        return " ".join(map(str, accumulator.all))

    def merge(self, one, other, /):
        one.all += other.all
        return one


class Whole(Struct, frozen=True):
    """Results of aggregates alone: with `within`, nothing is kept of a key."""

    card: str
    id: int
    at: Timestamp
    payments: Annotated[int, Count()]
    priced: Annotated[int, Count("cents")]
    total: Annotated[int | None, Sum("cents")]
    mean: Annotated[float | None, Avg("cents")]
    weight: Annotated[float, Sum("weight")]
    lowest: Annotated[int | None, Min("cents")]
    highest: Annotated[int | None, Max("cents")]
    prices: Annotated[int, CountDistinct("cents")]
    dearest: Annotated[int | None, ArgMax("id", by="cents")]
    cheapest: Annotated[int | None, ArgMin("id", by="cents")]
    first: Annotated[int | None, First("cents")]
    last: Annotated[int, Last("id")]
    large: Annotated[int, Count(where=lambda payment: (payment.cents or 0) > 4)]
    joined: Annotated[str, Joined()]


class Counted(Struct, frozen=True):
    """Results whose aggregates can give a row back."""

    id: int
    payments: Annotated[int, Count()]
    total: Annotated[int | None, Sum("cents")]
    mean: Annotated[float | None, Avg("cents")]
    prices: Annotated[int, CountDistinct("cents")]
    large: Annotated[int, Count(where=lambda payment: (payment.cents or 0) > 4)]


class Weighed(Struct, frozen=True):
    """Results whose sums depend on the order of the rows, and on rows that were added and taken away."""

    id: int
    payments: Annotated[int, Count()]
    weight: Annotated[float, Sum("weight")]


class Placed(Struct, frozen=True):
    """Results of functions of the row's place, and two aggregates."""

    id: int
    payments: Annotated[int, Count()]
    weight: Annotated[float, Sum("weight")]
    number: Annotated[int, RowNumber()]
    before: Annotated[int | None, Lag("cents")]
    second: Annotated[int, Lag("id", offset=2, default=-1)]


class Ahead(Struct, frozen=True):
    """Results that need the next two rows."""

    id: int
    payments: Annotated[int, Count()]
    number: Annotated[int, RowNumber()]
    before: Annotated[int, Lag("id", default=-1)]
    next: Annotated[int | None, Lead("cents")]
    second: Annotated[int, Lead("id", offset=2, default=-1)]


def payments(*, lag=0, row_kind=None):
    source = Pipeline("cards").source(
        "payments", Payment, event_time="at", out_of_orderness=timedelta(milliseconds=lag), row_kind=row_kind
    )
    return source.key_by("card")


def needs_key(result, rows, within):
    """Return whether something of each key is kept."""
    return result in {Placed, Ahead} or (within is None and rows != 1)


def over(stream, result=Whole, *, rows=None, within=None, keep=0, **options):
    """Lengths are in ms; the lifetime is for ever where one is needed."""
    if needs_key(result, rows, within):
        options = {"state_ttl": Lifetime.FOREVER, **options}
    if keep:
        options = {"late": Late.CORRECT, "keep": timedelta(milliseconds=keep), **options}
    length = None if within is None else timedelta(milliseconds=within)
    return stream.over("recent", result, rows=rows, within=length, **options)


def harness_of(result=Whole, *, backend="hashmap", snapshot=None, **options):
    results = over(payments(), result, **options)
    results.side("late", Payment)
    options = {"key": attrgetter("card"), "backend": backend, "side_outputs": {"late": Payment}}
    function = results.operators[-1].function
    return (
        KeyedHarness(function, **options) if snapshot is None else KeyedHarness.restore(snapshot, function, **options)
    )


class Model:
    """Rows of all keys, and the result of each by definition: sort, cut out the frame, fold it."""

    def __init__(self, result=Whole, *, rows=None, within=None, keep=0, order_by=()):
        self.result, self.rows, self.within, self.keep = result, rows, within, keep
        self.order_by = order_by
        self.watermark = -FAR
        self.taken, self.late = [], []

    def take(self, payment):
        is_late = payment.at <= self.watermark and payment.at + self.keep <= self.watermark
        (self.late if is_late else self.taken).append(payment)

    def place_of(self, payment):
        return (payment.at, *(getattr(payment, name) for name in self.order_by))

    def results_of(self, card, until=FAR):
        """Return the results of a card's rows up to an event time, in order."""
        rows = sorted((row for row in self.taken if row.card == card and row.at <= until), key=self.place_of)
        return [self.result_of(rows, place) for place in range(len(rows))]

    def results(self):
        return [result for card in sorted({row.card for row in self.taken}) for result in self.results_of(card)]

    def frame_of(self, rows, place):
        row = rows[place]
        if self.rows is not None:
            return rows[max(0, place + 1 - self.rows) : place + 1]
        if self.within is not None:
            return [other for other in rows if row.at - self.within <= other.at <= row.at]
        return [other for other in rows if self.place_of(other) <= self.place_of(row)]

    def result_of(self, rows, place):
        known = {**folded(self.frame_of(rows, place)), **placed(rows, place)}
        row = rows[place]
        fields = [name for name in self.result.__struct_fields__ if name not in known]
        known |= {name: getattr(row, name) for name in fields}
        if self.result is Ahead:
            known |= {"before": at_place(rows, place - 1, "id", -1), "second": at_place(rows, place + 2, "id", -1)}
        return msgspec.convert({name: known[name] for name in self.result.__struct_fields__}, self.result)


def at_place(rows, place, name, default=None):
    return getattr(rows[place], name) if 0 <= place < len(rows) else default


def placed(rows, place):
    return {
        "number": place + 1,
        "before": at_place(rows, place - 1, "cents"),
        "second": at_place(rows, place - 2, "id", -1),
        "next": at_place(rows, place + 1, "cents"),
    }


def folded(frame):
    weight = 0
    for row in frame:
        weight += row.weight
    priced = [row for row in frame if row.cents is not None]
    cents = [row.cents for row in priced]
    return {
        "payments": len(frame),
        "priced": len(cents),
        "total": sum(cents) if cents else None,
        "mean": sum(cents) / len(cents) if cents else None,
        "weight": float(weight),
        "lowest": min(cents, default=None),
        "highest": max(cents, default=None),
        "prices": len(set(cents)),
        "dearest": max(priced, key=attrgetter("cents")).id if priced else None,
        "cheapest": min(priced, key=attrgetter("cents")).id if priced else None,
        "first": cents[0] if cents else None,
        "last": frame[-1].id,
        "large": sum(price > 4 for price in cents),
        "joined": " ".join(str(row.id) for row in frame),
    }
