"""Steps of pipelines over sales, each from one stream of sales to another, with operators that know what they read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec

from headrace import History, JoinType, Lifetime, Pipeline, Struct, Timestamp
from headrace.api.graph import Keep
from headrace.operators import (
    ArgMax,
    Count,
    CountDistinct,
    CountWindow,
    Cumulative,
    First,
    Lag,
    Last,
    Max,
    Min,
    Rank,
    RowNumber,
    Session,
    Sum,
    Tumbling,
)
from headrace.stream.stream import Stream

FOR_EVER: Final = Lifetime.FOREVER


class Sale(Struct, frozen=True):
    id: int
    shop: str
    item: str
    amount: int
    rate: int
    at: Timestamp


class ByShop(Struct, frozen=True):
    id: Annotated[int, Count()]
    shop: str
    item: Annotated[str | None, ArgMax("item", by="amount")]
    amount: Annotated[int | None, Sum("rate")]
    rate: Annotated[int | None, Max("amount")]


class ByWindow(Struct, frozen=True):
    id: Annotated[int, CountDistinct("item")]
    shop: str
    item: Annotated[str | None, First("item")]
    amount: Annotated[int | None, Min("amount")]
    rate: Annotated[int | None, Last("rate")]


class InWindow(ByWindow, frozen=True):
    at: Annotated[int | None, Sum("id")]
    window_end: Timestamp


class Over(Struct, frozen=True):
    id: int
    shop: Annotated[str | None, Lag("item")]
    item: Annotated[str | None, Last("shop")]
    amount: Annotated[int | None, Sum("amount")]
    rate: Annotated[int, RowNumber()]


class Ranked(Struct, frozen=True):
    id: int
    shop: str
    item: str
    amount: int
    rate: Annotated[int, Rank()]


class Versioned(Struct, frozen=True):
    id: int
    shop: str
    item: str
    amount: int
    valid_from: int
    valid_to: int | None


SALE: Final = Sale.__struct_fields__


def as_sale(row: object) -> Sale:
    """Return a sale with what a result has, nulls as other values."""
    texts = {name: getattr(row, name) or "" for name in ("shop", "item")}
    rest = ("id", "amount", "rate", "valid_to", "window_end")
    numbers = {name: getattr(row, name, None) or 0 for name in rest}
    return Sale(
        numbers["id"],
        **texts,
        amount=numbers["amount"],
        rate=numbers["rate"] or numbers["valid_to"],
        at=numbers["window_end"],
    )


def sales(stream: Stream[Any]) -> Stream[Sale]:
    """Return results as sales, with what each field reads."""
    known = stream.record_type().__struct_fields__
    reads = {name: tuple({name} & {*known}) for name in SALE}
    reads["rate"] = tuple({"rate", "valid_to"} & {*known})
    reads["at"] = tuple({"window_end"} & {*known})
    return stream.map(as_sale, record=Sale, reads={"*": (), **reads})


def swapped(sale: Sale) -> Sale:
    return msgspec.structs.replace(sale, shop=sale.item, item=sale.shop, amount=sale.rate, rate=0)


def repeated(sale: Sale) -> list[Sale]:
    return [sale] * (sale.rate % 3)


def paired(left: Sale, right: Sale | None) -> Sale:
    return msgspec.structs.replace(left, amount=0 if right is None else right.amount)


SWAP: Final = {"id": ("id",), "shop": ("item",), "item": ("shop",), "amount": ("rate",), "rate": (), "at": ("at",)}
SAME: Final = {name: (name,) for name in SALE}

Step = Callable[[Stream[Any], str], Stream[Any]]
_LOW, _HIGH = timedelta(milliseconds=-10), timedelta(milliseconds=10)


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


STEPS: Final[dict[str, Step]] = {
    "filter": lambda s, _: s.filter(lambda sale: sale.amount % 3, reads=("amount",)),
    "map": lambda s, _: s.map(swapped, reads=SWAP),
    "flat_map": lambda s, _: s.flat_map(repeated, record=Sale, keeps=SALE, reads={**SAME, "*": ("rate",)}),
    "additions": lambda s, _: s.additions(),
    "union": lambda s, _: s.union(s.filter(lambda sale: sale.rate > 4, reads=("rate",))),
    "event time": lambda s, _: s.assign_event_time("at"),
    "normalize": lambda s, name: s.normalize(name, key="id"),
    "top": lambda s, name: s.key_by("shop").top(name, 2, by="amount", state_ttl=FOR_EVER),
    "ranked": lambda s, name: sales(s.key_by("item").top(name, 3, by="rate", result=Ranked, state_ttl=FOR_EVER)),
    "first": lambda s, name: s.key_by("shop").first_by_time(name, state_ttl=FOR_EVER),
    "last": lambda s, name: s.key_by("item", "shop").last_by_time(name, state_ttl=FOR_EVER),
    "aggregate": lambda s, name: sales(s.key_by("shop").aggregate(name, ByShop, state_ttl=FOR_EVER)),
    "over": lambda s, name: sales(s.key_by("rate").over(name, Over, rows=2, order_by="amount", state_ttl=FOR_EVER)),
    "tumbling": lambda s, name: sales(s.key_by("shop").window(Tumbling(_ms(10))).aggregate(name, ByWindow)),
    "cumulative": lambda s, name: sales(
        s.key_by("shop").window(Cumulative(_ms(20), _ms(10))).aggregate(name, InWindow)
    ),
    "session": lambda s, name: sales(s.key_by("shop").window(Session(_ms(5))).aggregate(name, ByWindow)),
    "count": lambda s, name: sales(
        s.key_by("shop").window(CountWindow(2, state_ttl=FOR_EVER)).aggregate(name, ByWindow)
    ),
    "window top": lambda s, name: s.key_by("shop").window(Tumbling(_ms(10))).top(name, 1, by="rate"),
    "join": lambda s, name: s.key_by("id").join(
        name, s.key_by("rate"), emit=paired, record=Sale, state_ttl=FOR_EVER, reads={**SAME, "amount": ("amount",)}
    ),
    "left join": lambda s, name: s.key_by("id").join(
        name, s.key_by("amount"), emit=paired, record=Sale, how=JoinType.LEFT, within=(_LOW, _HIGH), reads=SAME
    ),
    "as of": lambda s, name: s.key_by("shop").join_as_of(
        name, s.key_by("item"), emit=paired, record=Sale, how=JoinType.LEFT, state_ttl=FOR_EVER, reads=SAME
    ),
    "window join": lambda s, name: (
        s.key_by("id")
        .window(Tumbling(_ms(10)))
        .join(name, s.key_by("rate").window(Tumbling(_ms(10))), emit=paired, record=Sale, reads=SAME)
    ),
    "semi": lambda s, name: s.key_by("id").semi_join(name, s.key_by("amount"), state_ttl=FOR_EVER),
    "anti": lambda s, name: s.key_by("id").anti_join(name, s.key_by("rate"), state_ttl=FOR_EVER),
    "changes": lambda s, name: s.additions().apply_changes(
        name, key="shop", sequence_by="id", deletes=("rate", 3), tombstones=FOR_EVER
    ),
    "versions": lambda s, name: sales(
        s.additions().apply_changes(
            name,
            key="item",
            sequence_by="id",
            history=History.SCD2,
            record=Versioned,
            track=("amount",),
            corrections=FOR_EVER,
        )
    ),
}
"""Steps that know what they read; functions of users among them say it."""


def with_step(stream: Stream[Any], step: str, name: str) -> Stream[Any]:
    """Return the stream behind a step. Where the step refuses changes, each version of a row becomes one of its own before it."""
    try:
        return STEPS[step](stream, name)
    except ValueError:
        return STEPS[step](stream.additions(), name)


def pipeline_of(steps: list[str], keep: Keep | None = None) -> Pipeline:
    """Return a pipeline with these steps between sales and the sink `result`, which has one row for each id."""
    job = Pipeline("sales")
    stream: Stream[Any] = job.source("sales", Sale, event_time="at", out_of_orderness=_ms(8))
    for number, step in enumerate(steps):
        stream = with_step(stream, step, f"step_{number}")
    if keep is not None:
        return stream.deduplicate("kept", key="id", keep=keep).sink("result")
    return stream.upsert_materialize("kept", primary_key="id").sink("result")
