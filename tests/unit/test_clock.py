from __future__ import annotations

import asyncio

import pytest

from headrace import clock as engine_clock
from headrace.clock import SystemClock, VirtualClock


def test_virtual_clock_stands_still_until_moved(clock):
    before = engine_clock.now(), engine_clock.monotonic()
    assert (engine_clock.now(), engine_clock.monotonic()) == before
    clock.advance(1_500)
    assert (engine_clock.now(), engine_clock.monotonic()) == (before[0] + 1_500, before[1] + 1.5)


def test_sleep_moves_virtual_clock_without_taking_time(clock):
    engine_clock.sleep(3_600)
    asyncio.run(engine_clock.sleep_async(0.25))
    assert engine_clock.now() == 1_000_000 + 3_600_250


def test_ids_of_a_virtual_clock_count_up(clock):
    assert [engine_clock.unique_id()[-3:] for _ in range(3)] == ["001", "002", "003"]
    assert engine_clock.jitter() == 0.5


def test_use_returns_the_previous_clock():
    mine = VirtualClock(7)
    before = engine_clock.use(mine)
    try:
        assert engine_clock.now() == 7
    finally:
        assert engine_clock.use(before) is mine


@pytest.mark.parametrize("kind", [SystemClock, VirtualClock])
def test_clocks_give_32_digit_ids_and_probabilities(kind):
    result = kind()
    ids = {result.unique_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(unique) == 32 and int(unique, 16) >= 0 for unique in ids)
    assert 0 <= result.jitter() < 1


def test_system_clock_counts_milliseconds_without_going_back():
    result = SystemClock()
    assert result.now() > 1_700_000_000_000
    assert result.monotonic() <= result.monotonic()
