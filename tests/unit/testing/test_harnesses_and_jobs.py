"""A harness behaves like a job: both run the same function."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, FixedDelay, OutputMode, Pipeline, RecoveryOption, Struct, Timestamp, clock
from headrace.errors import ServiceError
from headrace.testing import AsyncWaitHarness, PipelineHarness
from tests.unit.support.fuzzing import examples

HOUR = 3_600_000
DAY = 24 * HOUR


class Question(Struct, frozen=True):
    number: int
    at: Timestamp = 0


class Answer(Struct, frozen=True):
    number: int


class Failing(AsyncFunction[Question, Answer]):
    """Records the times of its calls, and fails before `well_at`."""

    def __init__(self, well_at):
        self.well_at, self.calls = well_at, []

    async def invoke(self, question, /):
        self.calls.append(clock.now())
        if clock.now() < self.well_at:
            raise ConnectionError
        return [Answer(question.number)]


@pytest.mark.parametrize("recovery", RecoveryOption)
def test_new_run_waits_for_remaining_backoff(recovery):
    retry = FixedDelay(max_retries=5, delay=timedelta(hours=1))
    options = {"timeout": timedelta(days=1), "retry": retry, "recovery": recovery, "park_after": timedelta(0)}

    called = Failing(well_at=HOUR)
    with AsyncWaitHarness(called, **options) as h:
        h.process(Question(1))
        h.clock.advance(HOUR // 2)
        snapshot = h.snapshot()
    with AsyncWaitHarness.restore(snapshot, called, **options) as h:
        h.clock.advance(HOUR // 2 - 1)
        assert (called.calls, h.output()) == ([0], [])
        h.clock.advance(1)
        assert h.output() == [Answer(1)]

    asked = Failing(well_at=HOUR)
    pipeline = Pipeline("questions")
    questions = pipeline.source("questions", Question, event_time="at")
    questions.async_wait("ask", asked, **options).sink("answers")
    job = PipelineHarness(pipeline, now=0)
    job.feed("questions", [Question(1)])
    job.run()
    (first,) = asked.calls
    for timestamp in (first + HOUR // 2, first + HOUR - 5_000):  # a run itself takes some time
        job.clock.advance(timestamp - job.clock.now())
        job.run()
        assert (asked.calls, job.sink("answers")) == ([first], [])
    job.clock.advance(5_000)
    job.run()
    assert (len(asked.calls), job.sink("answers")) == (2, [Answer(1)])


@examples(30)
@given(
    days=st.integers(0, 100 * 365),
    milliseconds=st.integers(0, DAY),
    took=st.integers(1, 999),
    mode=st.sampled_from([OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.KEYED_ORDERED]),
)
def test_clock_is_exact_for_a_hundred_years(days, milliseconds, took, mode):
    class Slow(AsyncFunction[Question, Answer]):
        async def invoke(self, question, /):
            await clock.sleep_async(took / 1000)
            return [Answer(question.number)]

    key = (lambda question: question.number) if mode is OutputMode.KEYED_ORDERED else None
    with AsyncWaitHarness(Slow(), mode=mode, key=key, timeout=timedelta(seconds=1)) as h:
        start = days * DAY + milliseconds
        h.clock.advance(start)
        h.process(Question(1))
        h.clock.advance(took - 1)
        assert (h.output(), h.clock.now()) == ([], start + took - 1)
        h.clock.advance(1)
        assert (h.output(), h.clock.now()) == ([Answer(1)], start + took)


def test_timeouts_run_out_after_194_days():
    with AsyncWaitHarness(
        Failing(2**50), retry=FixedDelay(max_retries=9, delay=timedelta(seconds=7)), timeout=timedelta(seconds=30)
    ) as h:
        h.clock.advance(200 * DAY)
        h.process(Question(1))
        h.clock.advance(29_999)
        with pytest.raises(ServiceError):
            h.clock.advance(1)
        assert h.clock.now() == 200 * DAY + 30_000
