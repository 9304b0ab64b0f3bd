"""Batches that start by size and by timeout in a harness, answered one step at a time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Cleanup, KeyedProcessFunction, StateTtl, Struct, ValueState
from headrace.options import AsyncStateOptions, EventOrder
from headrace.testing import KeyedHarness, LateRecord

TIMEOUT = timedelta(milliseconds=100)


class Word(Struct, frozen=True):
    k: str


class Count(Struct, frozen=True):
    k: str
    n: int


class Counts(KeyedProcessFunction[Word, Count]):
    number = ValueState("number", int)

    async def process(self, word, ctx, /):
        n = (await self.number.value() or 0) + 1
        await self.number.update(n)
        ctx.collect(Count(word.k, n))


def harness(*, size=2, room=2, automatic=False, **options):
    given = AsyncStateOptions(buffer_size=size, buffer_timeout=TIMEOUT, io_parallelism=room, **options)
    return KeyedHarness(
        Counts(), key=lambda word: word.k, options=given, automatic=automatic, starts_batches=not automatic
    )


def batches(h):
    now = h.statistics()
    return now.batches, now.batches_in_flight


def give(h, *keys):
    for key in keys:
        h.process(Word(key), timestamp=1)


def test_full_batch_starts_and_waits_for_step():
    with harness() as h:
        give(h, "a")
        assert (batches(h), h.step()) == ((0, 0), False)
        give(h, "b")
        assert (batches(h), h.output()) == ((1, 1), [])
        assert h.step()
        assert (batches(h), h.output()) == ((1, 0), [Count("a", 1), Count("b", 1)])
        assert not h.step()


def test_batch_starts_when_first_request_has_waited():
    with harness() as h:
        h.clock.advance(7)
        give(h, "a")
        h.clock.advance(99)
        assert batches(h) == (0, 0)
        h.clock.advance(1)
        assert batches(h) == (1, 1)
        assert h.step()
        assert h.output() == [Count("a", 1)]


def test_no_more_batches_start_than_fit():
    with harness(size=1, room=2) as h:
        give(h, *"abc")
        assert batches(h) == (2, 2)
        assert h.step()
        assert batches(h) == (3, 2)
        assert [h.step(), h.step(), h.step()] == [True, True, False]
        assert h.output() == [Count(key, 1) for key in "abc"]


def test_records_of_a_key_wait_for_their_turn():
    with harness(size=1) as h:
        give(h, "a", "a")
        assert (batches(h), h.statistics().blocking) == ((1, 1), 1)
        h.drain()
        assert h.output() == [Count("a", 1), Count("a", 2)]


def test_starts_batches_option_needs_single_steps():
    with pytest.raises(ValueError, match="give automatic=False beside it"):
        KeyedHarness(Counts(), key=lambda word: word.k, starts_batches=True)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.sampled_from("abc")),
        st.tuples(st.just("step"), st.none()),
        st.tuples(st.just("advance"), st.integers(1, 150)),
        st.tuples(st.just("watermark"), st.none()),
        st.tuples(st.just("snapshot"), st.none()),
    ),
    max_size=30,
)


@given(steps=steps, size=st.integers(1, 4), room=st.integers(1, 3), order=st.sampled_from(EventOrder))
def test_steps_change_no_results(steps, size, room, order):
    outputs = []
    for automatic in (True, False):
        with harness(size=size, room=room, automatic=automatic, event_order_watermark=order) as h:
            for number, (kind, argument) in enumerate(steps):
                match kind:
                    case "give":
                        h.process(Word(argument), timestamp=number)
                    case "step":
                        h.step()
                    case "advance":
                        h.clock.advance(argument)
                    case "watermark":
                        h.watermark(number)
                    case _:
                        h.snapshot()
            h.drain()
            result = [output for output in h.output() if not isinstance(output, LateRecord)]
            outputs.append({key: [record.n for record in result if getattr(record, "k", "") == key] for key in "abc"})
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("cleanup", [Cleanup(), Cleanup(entries_per_record=0, exact=True)])
def test_unread_expired_entries_are_counted(cleanup):
    class Short(Counts):
        number = ValueState("number", int, ttl=StateTtl(timedelta(milliseconds=10), cleanup=cleanup))

    with KeyedHarness(Short(), key=lambda word: word.k) as h:
        give(h, "a", "b")
        h.snapshot()
        h.watermark(11)
        h.process(Word("a"), timestamp=12)
        assert h.statistics().expired == 1
        h.process(Word("c"), timestamp=12)
        h.snapshot()
        assert h.statistics().expired == 2
        h.snapshot()
        assert h.statistics().expired == 2
