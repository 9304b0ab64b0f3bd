"""A function of two inputs in the harness: one state, one order, and errors that name the method."""

from __future__ import annotations

import pytest

from headrace import KeyedCoProcessFunction, Struct, Timestamp, ValueState
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness, LateRecord, Watermark

PATIENCE = 10


class Order(Struct, frozen=True):
    id: int
    at: Timestamp
    cents: int = 100


class Payment(Struct, frozen=True):
    order: int
    cents: float


class Paid(Struct, frozen=True):
    order: int
    cents: float | None


class Payments(KeyedCoProcessFunction[Order, Payment, Paid]):
    """Joins an order with its payment, and emits orders that wait for longer than `PATIENCE` (ms)."""

    order = ValueState("order", Order)
    payment = ValueState("payment", Payment)

    async def process1(self, order, ctx, /):
        if payment := await self.payment.value():
            ctx.collect(Paid(order.id, payment.cents))
            return
        await self.order.update(order)
        ctx.timers.register_event_time(order.at + PATIENCE)

    async def process2(self, payment, ctx, /):
        if order := await self.order.value():
            ctx.timers.delete_event_time(order.at + PATIENCE)
            ctx.collect(Paid(order.id, payment.cents))
        await self.payment.update(payment)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Paid(ctx.key, None))


KEYS = (lambda order: order.id, lambda payment: payment.order)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def harness(request):
    with KeyedHarness(Payments(), key=KEYS, backend=request.param) as h:
        yield h


def test_inputs_share_state_and_timers(harness):
    harness.process1(Order(1, at=1), 1)
    harness.process1(Order(2, at=2), 2)
    harness.process2(Payment(1, 100), 3)
    harness.process2(Payment(3, 300), 4)
    harness.process1(Order(3, at=5), 5)
    harness.watermark(20)
    assert harness.output() == [Paid(1, 100), Paid(3, 300), Paid(2, None), Watermark(20)]


def test_late_records_of_both_inputs_are_reported(harness):
    harness.watermark(5)
    harness.process2(Payment(1, 1), 5)
    assert harness.output() == [Watermark(5), LateRecord(Payment(1, 1))]


@pytest.mark.parametrize("automatic", [True, False])
def test_restored_harness_continues_with_both_inputs(harness, automatic):
    harness.process1(Order(1, at=1), 1)
    snapshot = harness.snapshot()
    with KeyedHarness.restore(snapshot, Payments(), key=KEYS, automatic=automatic) as restored:
        restored.process2(Payment(1, 7), 2)
        restored.drain()
        assert restored.output() == [Paid(1, 7)]


def test_steps_keep_the_order_between_inputs():
    with KeyedHarness(Payments(), key=KEYS, automatic=False) as h:
        h.process1(Order(1, at=1), 1)
        h.process2(Payment(1, 7), 2)
        assert (h.statistics().blocking, h.output()) == (1, [])
        while h.step():
            pass
        assert h.output() == [Paid(1, 7)]


def test_error_names_the_method_of_the_input(harness):
    class Fails(Payments):
        async def process2(self, payment, ctx, /):
            raise ValueError(payment.cents)

    with (
        KeyedHarness(Fails(), key=KEYS) as h,
        pytest.raises(UserFunctionError, match=r'process2\(\), key 1, record {"order":1,"cents":5.0}'),
    ):
        h.process2(Payment(1, 5), 1)


def test_records_are_decoded_by_their_inputs_type(harness):
    with pytest.raises(UserFunctionError, match=r"before its input 2 sent a record that does not fit"):
        harness.process2(Payment(1, "much"), 1)


def test_error_of_wrong_method_lists_right_methods(harness):
    with pytest.raises(
        TypeError, match=r"Payments takes in records by process1\(\) and process2\(\), not by process\(\)"
    ):
        harness.process(Order(1, at=1))


def test_harness_needs_a_key_for_each_input():
    with pytest.raises(TypeError, match="it needs a key for each"):
        KeyedHarness(Payments(), key=lambda order: order.id)


def test_plain_functions_take_two_inputs():
    class Plain(KeyedCoProcessFunction[Order, Payment, Paid]):
        total = ValueState("total", float)

        def process1(self, order, ctx, /):
            self.total.update((self.total.value() or 0) - order.cents)

        def process2(self, payment, ctx, /):
            self.total.update((self.total.value() or 0) + payment.cents)
            ctx.collect(Paid(payment.order, self.total.value()))

    with KeyedHarness(Plain(), key=KEYS) as h:
        h.process1(Order(1, at=1), 1)
        h.process2(Payment(1, 130), 2)
        assert h.output() == [Paid(1, 30)]
