"""Broadcast state in the harness: read everywhere, changed in one place, and equal after a restart."""

from __future__ import annotations

import pytest

from headrace import (
    BroadcastState,
    KeyedBroadcastFunction,
    KeyedProcessFunction,
    RowKind,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.testing import KeyedHarness, Watermark


class Order(Struct, frozen=True):
    id: int
    item: str
    at: Timestamp = 0


class Price(Struct, frozen=True):
    item: str
    cents: float | None


class Line(Struct, frozen=True):
    order: int
    cents: float | None
    by: str = ""


class Prices(KeyedBroadcastFunction[Order, Price, Line]):
    """Prices orders on arrival, and again 10 ms later."""

    prices = BroadcastState("prices", str, float)
    item = ValueState("item", str)

    async def process(self, order, ctx, /):
        await self.item.value()
        await self.item.update(order.item)
        ctx.collect(Line(order.id, self.prices.get(order.item)))
        ctx.timers.register_event_time(order.at + 10)

    def process_broadcast(self, price, ctx, /):
        if price.item == "*":
            self.prices.clear()
        elif ctx.row_kind is RowKind.DELETE:
            self.prices.remove(price.item)
        else:
            self.prices.put(price.item, price.cents)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Line(ctx.key, self.prices.get(await self.item.value()), "timer"))


def new(function=None, **arguments):
    return KeyedHarness(function or Prices(), key=lambda order: order.id, **arguments)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def harness(request):
    with new(backend=request.param) as h:
        yield h


def test_records_and_timers_see_state_in_order(harness):
    harness.process(Order(1, "egg", at=1), 1)
    harness.process_broadcast(Price("egg", 30), 2)
    harness.process(Order(2, "egg", at=3), 3)
    harness.watermark(12)
    harness.process_broadcast(Price("egg", 40), 13)
    harness.watermark(13)
    assert harness.output() == [
        Line(1, None),
        Line(2, 30),
        Line(1, 30, "timer"),
        Watermark(12),
        Line(2, 40, "timer"),
        Watermark(13),
    ]


def test_earlier_records_finish_with_the_old_state():
    with new(automatic=False) as h:
        h.process(Order(1, "egg"), 1)
        assert h.statistics().in_flight == 1
        h.process_broadcast(Price("egg", 30), 2)
        assert (h.statistics().in_flight, h.output()) == (0, [Line(1, None)])


@pytest.mark.parametrize("other", ["hashmap", "rocksdb", "delta"])
def test_restored_harness_has_the_broadcast_state(harness, other):
    for item, cents in (("egg", 30), ("ham", 90), ("tea", 5)):
        harness.process_broadcast(Price(item, cents), 1)
    harness.process_broadcast(Price("ham", None), 2, kind=RowKind.DELETE)
    first = harness.snapshot()
    harness.process_broadcast(Price("tea", None), 3)
    harness.process_broadcast(Price("egg", 31), 3)
    for snapshot, expected in ((first, {"egg": 30, "tea": 5}), (harness.snapshot(), {"egg": 31})):
        with KeyedHarness.restore(snapshot, Prices(), key=lambda order: order.id, backend=other) as restored:
            assert restored.state("prices", None) == expected


def test_cleared_state_stays_empty(harness):
    harness.process_broadcast(Price("egg", 30), 1)
    harness.snapshot()
    harness.process_broadcast(Price("*", None), 2)
    snapshot = harness.snapshot()
    assert (harness.state("prices", None), snapshot.entries) == ({}, ())


def test_broadcast_values_have_declared_types_at_once(harness):
    harness.process_broadcast(Price("egg", 30), 1)
    harness.process(Order(1, "egg"), 2)
    assert isinstance(harness.output()[0].cents, float)


def test_all_entries_come_in_order_of_their_keys(harness):
    class Lists(Prices):
        async def process(self, order, ctx, /):
            output = (self.prices.items(), self.prices.keys(), self.prices.values(), self.prices.contains("egg"))
            ctx.collect(Line(order.id, None, repr((*output, self.prices.is_empty()))))

    with new(Lists()) as h:
        for item in ("tea", "egg"):
            h.process_broadcast(Price(item, 1), 1)
        h.process(Order(1, "egg"), 2)
        assert h.output()[0].by == "([('egg', 1.0), ('tea', 1.0)], ['egg', 'tea'], [1.0, 1.0], True, False)"


@pytest.mark.parametrize("call", ["put", "remove", "clear"])
def test_process_cannot_change_broadcast_state(call):
    arguments = {"put": ("egg", 1), "remove": ("egg",), "clear": ()}[call]

    class Changes(Prices):
        async def process(self, order, ctx, /):
            getattr(self.prices, call)(*arguments)

    wanted = r"broadcast state 'prices' of operator 'function' can be changed in process_broadcast\(\) only"
    with new(Changes()) as h:
        h.process_broadcast(Price("egg", 3), 1)
        with pytest.raises(UserFunctionError, match=wanted):
            h.process(Order(1, "egg"), 2)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda _, ctx: ctx.collect(Line(1, 1)), r"cannot use ctx.collect\(\): it runs in every task"),
        (lambda _, ctx: ctx.output("side", Line(1, 1)), r"cannot use ctx.output\(\)"),
        (lambda _, ctx: ctx.timers.register_event_time(5), r"has no key, so it cannot use ctx.timers"),
        (lambda _, ctx: ctx.key, r"has no key, so it cannot use ctx.key"),
        (lambda function, _: function.item.update("egg"), r"has no key, so it cannot use keyed state"),
        (lambda function, _: function.item.value(), r"has no key, so it cannot use keyed state"),
    ],
)
@pytest.mark.parametrize("automatic", [True, False])
def test_broadcast_record_has_no_key_and_emits_nothing(use, why, automatic):
    class Uses(Prices):
        def process_broadcast(self, price, ctx, /):
            use(self, ctx)

    with new(Uses(), automatic=automatic) as h:
        h.process(Order(1, "egg"), 1)
        with pytest.raises(UserFunctionError, match=rf"operator 'function', process_broadcast\(\), record [^$]*{why}"):
            h.process_broadcast(Price("egg", 3), 2)


def test_value_of_another_type_is_refused(harness):
    class Wrong(Prices):
        def process_broadcast(self, price, ctx, /):
            self.prices.put(price.item, "much")

    with (
        new(Wrong()) as h,
        pytest.raises(StateSchemaError, match="state 'prices' of operator 'function' was given 'much'"),
    ):
        h.process_broadcast(Price("egg", 3), 1)


def test_only_broadcast_functions_declare_broadcast_state():
    class Keyed(KeyedProcessFunction[Order, Line]):
        prices = BroadcastState("prices", str, float)

        async def process(self, order, ctx, /): ...

    with pytest.raises(TypeError, match="Keyed declares broadcast state 'prices', which only a KeyedBroadcastFunction"):
        KeyedHarness(Keyed(), key=lambda order: order.id)


def test_plain_functions_read_broadcast_state():
    class Plain(KeyedBroadcastFunction[Order, Price, Line]):
        prices = BroadcastState("prices", str, float)
        seen = ValueState("seen", int)

        def process(self, order, ctx, /):
            self.seen.update((self.seen.value() or 0) + 1)
            ctx.collect(Line(order.id, self.prices.get(order.item)))

        def process_broadcast(self, price, ctx, /):
            self.prices.put_all({price.item: price.cents})

    with new(Plain()) as h:
        h.process_broadcast(Price("egg", 3), 1)
        h.process(Order(1, "egg"), 2)
        assert h.output() == [Line(1, 3)]
