"""What the engine learns from a user's class: record types, input methods, `async def` or plain `def`."""

from __future__ import annotations

from typing import Generic, TypeVar

import pytest

from headrace import KeyedCoProcessFunction, KeyedProcessFunction, Struct
from headrace.api.functions import function_types, input_methods, is_blocking

T = TypeVar("T", bound=Struct)


class Order(Struct, frozen=True):
    id: int


class Payment(Struct, frozen=True):
    order: int


class Line(Struct, frozen=True):
    text: str


class Paid(KeyedCoProcessFunction[Order, Payment, Line]):
    async def process1(self, order, ctx, /): ...

    async def process2(self, payment, ctx, /): ...


class PlainPaid(KeyedCoProcessFunction[Order, Payment, Line]):
    def process1(self, order, ctx, /): ...

    def process2(self, payment, ctx, /): ...


def test_types_of_both_inputs_are_named():
    assert function_types(Paid()) == ((Order, Payment), Line)
    assert function_types(type("Derived", (Paid,), {})()) == ((Order, Payment), Line)
    assert input_methods(Paid()) == ("process1", "process2")


def test_types_must_be_named():
    class Echo(KeyedProcessFunction[T, T], Generic[T]):
        async def process(self, record, ctx, /): ...

    class EchoLines(Echo[Line]): ...

    class Nameless(KeyedCoProcessFunction):
        process1 = process2 = Paid.process1

    with pytest.raises(TypeError, match=r"Nameless must name its types, as in KeyedCoProcessFunction\[Order,"):
        function_types(Nameless())
    with pytest.raises(TypeError, match="EchoLines must name its types"):
        function_types(EchoLines())


def test_inputs_are_both_async_or_both_plain():
    class Mixed(Paid):
        def process2(self, payment, ctx, /): ...

    assert (is_blocking(Paid()), is_blocking(PlainPaid())) == (False, True)
    with pytest.raises(TypeError, match=r"process1\(\) and process2\(\) of Mixed must both be 'async def'"):
        is_blocking(Mixed())


def test_timer_methods_are_async_like_inputs():
    class Timed(PlainPaid):
        async def on_timer(self, timestamp, ctx, /): ...

    with pytest.raises(TypeError, match=r"process1\(\), process2\(\) and on_timer\(\) of Timed must all be"):
        is_blocking(Timed())


def test_second_input_must_not_yield():
    class Yields(Paid):
        async def process2(self, payment, ctx, /):
            yield

    with pytest.raises(TypeError, match=r"process2\(\) of Yields has a yield"):
        is_blocking(Yields())
