"""Pipelines whose filters, event times and keys depend on chance, on the seed of `hash`, or on the date; and some that do not."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, date, datetime

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    taken: str = ""


class Relay(KeyedProcessFunction[Order, Order]):
    async def process(self, record, ctx, /):
        ctx.collect(record)


def stamped(order: Order) -> Order:
    return Order(order.id, order.at, str(uuid.uuid4()))


def by_chance(order):
    return random.randrange(9)


def by_hash(order):
    return hash(order.id) % 97


def by_text(order):
    return order.id


def of_today(order):
    return datetime.now(UTC).toordinal() % 2 == 0


def after_day(order):
    return date.today().day % 2 == order.at % 2  # noqa: DTZ011 - as users write it


def is_even(order):
    return len(order.id) % 2 == 0


def arrival(order):
    return int(time.time()) // 1000


def broken(order):
    raise ValueError(order)


def _relayed(*streams):
    """Return a pipeline with an operator behind each of some streams."""
    orders = Pipeline("orders").source("orders", Order, event_time="at")
    pipeline = orders._pipeline
    for number, stream in enumerate(streams):
        pipeline = stream(orders).process(f"relay_{number}", Relay()).sink(f"out_{number}")
    return pipeline


fields = _relayed(lambda orders: orders.key_by("id"))
chance = _relayed(lambda orders: orders.key_by(by_chance))
repeatable = _relayed(
    lambda orders: orders.filter(is_even).key_by(by_text),
    lambda orders: orders.filter(broken).key_by(by_chance),
    lambda orders: orders.key_by("id"),
)
undetermined = _relayed(
    lambda orders: orders.key_by(by_chance),
    lambda orders: orders.filter(is_even).key_by(by_hash),
    lambda orders: orders.filter(of_today).key_by("id"),
    lambda orders: orders.filter(after_day).key_by("id"),
    lambda orders: orders.assign_event_time(arrival).key_by("id"),
    lambda orders: orders.map(stamped).key_by("id"),
)
