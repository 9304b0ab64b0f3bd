"""Mistakes of user code whose own exception does not say what to do, and values that cannot be stored."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from headrace import KeyedProcessFunction, Struct, Timestamp, ValueState
from headrace.errors import UserFunctionError, without_credentials
from headrace.testing import KeyedHarness


class Order(Struct, frozen=True):
    id: str
    at: Timestamp


async def sleep(_function, _order, _ctx):
    await asyncio.sleep(0.1)


async def yield_to_the_loop(_function, _order, _ctx):
    await asyncio.sleep(0)


async def add(function, _order, _ctx):
    await function.count.update(function.count.value() + 1)


async def ask(function, order, ctx):
    if function.count.value():
        ctx.collect(order)


async def give_no_reason(_function, _order, ctx):
    ctx.quarantine(None)


async def give_half_a_character(_function, _order, ctx):
    ctx.quarantine("\ud800")


async def collect_far_away(_function, order, ctx):
    ctx.collect(order, timestamp=2**70)


class Counts(KeyedProcessFunction[Order, Order]):
    count = ValueState("count", int)

    def __init__(self, body):
        self.body = body

    async def process(self, order, ctx, /):
        await self.body(self, order, ctx)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (sleep, "sleep, timeouts, tasks and calls to the outside belong in an AsyncFunction"),
        (yield_to_the_loop, "belong in an AsyncFunction (async_wait())"),
        (add, "Did you forget 'await'?"),
        (ask, "Did you forget 'await'?"),
        (give_no_reason, "quarantine() takes a text that says why, not NoneType"),
        (give_half_a_character, r"'\ud800', which is not UTF-8"),
        (collect_far_away, "a record's time must lie within"),
    ],
)
def test_mistakes_of_user_code_are_explained(body, hint):
    harness = KeyedHarness(Counts(body), key=lambda order: order.id)

    def run():
        with closing(harness):
            harness.process(Order("a", 1), 1)
            harness.drain()

    with pytest.raises(UserFunctionError) as failure:
        run()
    text = str(failure.value)
    assert hint in text
    assert 'key "a"' in text
    assert "test_user_hints.py" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no route to http://ann:secret@host:9000/x", "no route to http://...@host:9000/x"),
        ("https://token@host, s3://bucket/x@y", "https://...@host, s3://bucket/x@y"),
        ("abfss://lake@account.dfs.core.windows.net/x", "abfss://lake@account.dfs.core.windows.net/x"),
        ("socks5://u:p@proxy", "socks5://...@proxy"),
    ],
)
def test_credentials_in_urls_are_hidden(text, shown):
    assert without_credentials(text) == shown
