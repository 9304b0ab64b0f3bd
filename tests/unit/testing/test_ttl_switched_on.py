"""A TTL that is added to existing state, in harnesses and in jobs: no lifetime begins before the first micro-batch with it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    ExpiryClock,
    KeyedProcessFunction,
    Pipeline,
    RowKind,
    StateTtl,
    Struct,
    Timestamp,
    TtlTime,
    ValueState,
)
from headrace.testing import KeyedHarness, MaterializerHarness, PipelineHarness

TEN = timedelta(milliseconds=10)
DAY = 86_400_000
BY_WATERMARK = StateTtl(TEN)
BY_PROCESSING_TIME = StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME)
IN_PROCESSING_TIME = StateTtl(TEN, time=TtlTime.PROCESSING)


class Visit(Struct, frozen=True):
    """Stores `n`, unless it is 0."""

    k: str
    n: int = 0
    at: Timestamp = 0


class Seen(Struct, frozen=True):
    k: str
    n: int | None


def remembering(ttl):
    class Remembers(KeyedProcessFunction[Visit, Seen]):
        number = ValueState("number", int, ttl=ttl)

        async def process(self, visit, ctx, /):
            ctx.collect(Seen(visit.k, await self.number.value()))
            if visit.n:
                await self.number.update(visit.n)

    return Remembers()


def harness_of(ttl, snapshot=None):
    arguments = {"key": lambda visit: visit.k}
    if snapshot is None:
        return KeyedHarness(remembering(ttl), **arguments)
    return KeyedHarness.restore(snapshot, remembering(ttl), **arguments)


def seen(harness, at):
    harness.output()
    harness.process(Visit("a"), timestamp=at)
    return next(output.n for output in harness.output() if isinstance(output, Seen))


times = st.integers(0, 10_000)


@given(born=times, others=st.lists(times), watermark=st.none() | times)
def test_enabled_watermark_ttl_starts_full_lifetime(born, others, watermark):
    with harness_of(None) as h:
        h.process(Visit("a", 5), timestamp=born)
        for at in others:
            h.process(Visit("b", 5), timestamp=at)
        if watermark is not None:
            h.watermark(watermark)
        snapshot = h.snapshot()
    since = max(born, max([born, *others]) if watermark is None else watermark)
    with harness_of(BY_WATERMARK, snapshot) as h:
        assert seen(h, since) == 5
        h.watermark(since + 9)
        assert seen(h, since) == 5
        snapshot = h.snapshot()
    with harness_of(BY_WATERMARK, snapshot) as h:
        assert seen(h, since) == 5
        h.watermark(since + 10)
        assert seen(h, since) is None


@pytest.mark.parametrize("ttl", [BY_PROCESSING_TIME, IN_PROCESSING_TIME])
def test_enabled_processing_ttl_starts_full_lifetime(ttl):
    with harness_of(None) as h:
        h.process(Visit("a", 5), timestamp=1)
        h.watermark(2)
        h.clock.advance(DAY)
        snapshot = h.snapshot()
    with harness_of(ttl, snapshot) as h:
        h.clock.advance(9)
        assert seen(h, 3) == 5
        h.clock.advance(1)
        assert seen(h, 3) is None


def test_changed_expiry_clock_restarts_lifetimes():
    with harness_of(None) as h:
        h.process(Visit("a", 5), timestamp=1)
        h.watermark(2)
        h.clock.advance(DAY)
        snapshot = h.snapshot()
    with harness_of(BY_PROCESSING_TIME, snapshot) as h:
        snapshot = h.snapshot()
    with harness_of(BY_WATERMARK, snapshot) as h:
        h.watermark(11)
        assert seen(h, 3) == 5
        h.watermark(12)
        assert seen(h, 3) is None


def test_ttl_from_beginning_counts_from_the_stamp():
    with harness_of(BY_WATERMARK) as h:
        h.process(Visit("a", 5), timestamp=1)
        snapshot = h.snapshot()
    with harness_of(BY_WATERMARK, snapshot) as h:
        h.watermark(11)
        assert seen(h, 3) is None


@pytest.mark.parametrize("watermark", [None, 1_000])
def test_materializer_histories_survive_enabling_ttl(watermark):
    arguments = {"primary_key": ("k",)}
    with MaterializerHarness(Visit, **arguments) as h:
        for key in "ab":
            h.process(RowKind.INSERT, Visit(key, 1), timestamp=1)
            h.process(RowKind.INSERT, Visit(key, 2), timestamp=1_000 if watermark is None else 2)
        if watermark is not None:
            h.watermark(watermark)
        snapshot = h.snapshot()
    with MaterializerHarness.restore(snapshot, Visit, ttl=BY_WATERMARK, **arguments) as h:
        h.watermark(1_009)
        h.process(RowKind.DELETE, Visit("a", 2), timestamp=1_009)
        assert h.output() == [(RowKind.UPDATE_AFTER, Visit("a", 1))]
        h.watermark(1_010)
        h.process(RowKind.DELETE, Visit("b", 2), timestamp=1_009)
        assert (h.output(), h.unmatched) == ([], [Visit("b", 2)])


@pytest.mark.parametrize("bucket", [1, 4, 1_000])
@pytest.mark.parametrize("ttl", [BY_WATERMARK, BY_PROCESSING_TIME, IN_PROCESSING_TIME])
def test_enabling_ttl_in_job_expires_nothing(ttl, bucket):
    def pipeline(ttl):
        p = Pipeline("visits")
        p.source("visits", Visit, event_time="at").key_by("k").process("numbers", remembering(ttl)).sink("seen")
        return p

    h = PipelineHarness(pipeline(None), bucket=bucket)
    h.feed("visits", [Visit("a", 5, 1), Visit("b", 5, 1), Visit("c", 5, 1_000)])
    h.run()
    h.clock.advance(DAY)
    h.change(pipeline=pipeline(ttl))
    # The watermark advances within this micro-batch, because its first row fills a bucket.
    h.feed("visits", [Visit("d", 0, 1_009), Visit("a", 0, 1_000)])
    h.run()
    assert Seen("a", 5) in h.sink("seen")
    h.clock.advance(DAY)
    rows = [Visit("d", 0, 1_011)] * bucket
    h.feed("visits", [*rows, Visit("b", 0, 1_011)])
    h.run()
    assert Seen("b", 5) not in h.sink("seen")
