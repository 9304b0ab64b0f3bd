"""The async wait operator, one step at a time on a virtual clock: order, capacity, retries, restarts."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncWait, ExponentialBackoff, FixedDelay, OnFailure, OutputMode, RecoveryOption, clock
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.errors import ServiceError, UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from headrace.testing import AsyncWaitHarness, CapacityFull, QuarantinedRecord, Watermark
from headrace.testing._virtual_loop import LoopClock, VirtualLoop
from tests.unit.support.asking import Answer, Promised, Question
from tests.unit.support.fuzzing import examples

MS = timedelta(milliseconds=1)
UNORDERED = (OutputMode.UNORDERED, OutputMode.UNORDERED_PROCESSING_TIME)


def harness(function, mode=OutputMode.UNORDERED, **options):
    options = {"capacity": 10, "timeout": 1000 * MS, **options}
    key = (lambda question: question.key) if mode is OutputMode.KEYED_ORDERED else None
    return AsyncWaitHarness(function, mode=mode, key=key, **options)


def after(*milliseconds, fails=()):
    """Return calls that take so long; the calls at the places `fails` fail."""
    return [(time / 1000, place not in fails) for place, time in enumerate(milliseconds)]


def numbers(output):
    return [record.number if isinstance(record, Answer) else record for record in output]


# ------------------------------------------------------------------------------------------------------- order


def test_ordered_results_and_watermarks_wait_for_earlier():
    #  1 ─────────10   2 ──5   W   3 ─7
    with harness(Promised({1: after(10), 2: after(5), 3: after(7)}), OutputMode.ORDERED) as h:
        h.process(Question(1))
        h.process(Question(2))
        h.watermark(100)
        h.process(Question(3))
        h.clock.advance(9)
        assert h.output() == []
        assert h.statistics().completed == 2
        h.clock.advance(1)
        assert numbers(h.output()) == [1, 2, Watermark(100), 3]


def test_unordered_results_overtake_results_not_watermarks():
    #  set {1 ────10, 2 ─5}  W  set {3 ──7, 4 ─3}
    with harness(Promised({1: after(10), 2: after(5), 3: after(7), 4: after(3)})) as h:
        h.process(Question(1))
        h.process(Question(2))
        h.watermark(100)
        h.process(Question(3))
        h.process(Question(4))
        h.clock.advance(9)
        assert numbers(h.output()) == [2]
        h.clock.advance(1)
        assert numbers(h.output()) == [1, Watermark(100), 4, 3]


def test_unordered_processing_time_watermarks_delay_no_record():
    with harness(Promised({1: after(10), 2: after(5)}), OutputMode.UNORDERED_PROCESSING_TIME) as h:
        h.process(Question(1))
        h.watermark(100)
        h.process(Question(2))
        h.clock.advance(10)
        assert numbers(h.output()) == [Watermark(100), 2, 1]


def test_keyed_ordered_call_waits_for_keys_earlier():
    with harness(Promised({1: after(10), 2: after(5), 3: after(5)}), OutputMode.KEYED_ORDERED) as h:
        h.process(Question(1, "a"))
        h.process(Question(2, "a"))
        h.process(Question(3, "b"))
        h.clock.advance(9)
        assert (numbers(h.output()), h.function.calls) == ([3], [1, 3])
        h.clock.advance(6)
        assert numbers(h.output()) == [1, 2]


def test_watermarks_and_results_that_wait_take_capacity():
    with harness(Promised({1: after(10)}), OutputMode.ORDERED, capacity=3) as h:
        h.process(Question(1))
        h.process(Question(2))
        h.watermark(5)
        with pytest.raises(CapacityFull):
            h.process(Question(3))
        h.process(Question(3), block=True)
        assert h.clock.now() == 10
        assert numbers(h.output()) == [1, 2, Watermark(5), 3]


# ----------------------------------------------------------------------------------------------------- retries


def test_retry_begins_when_the_strategy_says():
    retry = ExponentialBackoff(max_retries=2, initial_delay=100 * MS, max_delay=1000 * MS)
    with harness(Promised({1: after(1, 1, 1, fails=(0, 1))}), retry=retry) as h:
        h.process(Question(1))
        h.clock.advance(1)
        assert h.statistics().waiting_for_retry == 1
        h.clock.advance(99)
        assert h.statistics().attempts == 1
        h.clock.advance(1)
        assert h.statistics().attempts == 2
        h.clock.advance(1 + 200 + 1)
        assert h.output() == [Answer(1, 3)]


def test_timeout_over_all_attempts_is_final():
    """The result after the timeout is emitted on time."""

    class Hooked(Promised):
        async def timeout(self, question, /):
            return [Answer(question.number, -1)]

    with harness(Hooked({1: after(300, 300, 600, fails=(0, 1))}), retry=FixedDelay(max_retries=9, delay=50 * MS)) as h:
        h.process(Question(1))
        h.clock.advance(999)
        assert h.output() == []
        h.clock.advance(1)
        assert h.output() == [Answer(1, -1)]
        h.clock.advance(10_000)
        assert (h.function.calls, h.statistics().timeouts) == ([1, 1, 1], 1)


def test_by_default_a_timeout_fails_the_run():
    with harness(Promised({1: after(2000)})) as h:
        h.process(Question(1))
        with pytest.raises(ServiceError, match="no response within 1 s"):
            h.clock.advance(1000)


def test_refused_answer_is_retried_then_emitted():
    """The answer is emitted when retries are used up."""
    retry = FixedDelay(max_retries=2, delay=10 * MS, results=lambda answers: answers[0].attempt < 99)
    with harness(Promised(), retry=retry) as h:
        h.process(Question(1))
        h.clock.advance(20)
        assert h.output() == [Answer(1, 3)]


def test_backoff_applies_to_each_record():
    retry = ExponentialBackoff(max_retries=5, initial_delay=100 * MS, max_delay=1000 * MS)
    with harness(Promised({1: after(0, 0, 0, fails=(0, 1)), 2: after(0, 0, fails=(0,))}), retry=retry) as h:
        h.process(Question(1))
        h.clock.advance(150)
        h.process(Question(2))
        h.clock.advance(100)
        assert h.output() == [Answer(2, 2)]
        h.clock.advance(50)
        assert h.output() == [Answer(1, 3)]


def test_retries_waiting_at_input_end_are_final():
    """The retries are made at once, and for the last time."""
    retry = FixedDelay(max_retries=9, delay=timedelta(milliseconds=500))
    with harness(Promised({1: after(1, 1, fails=(0,)), 2: after(1, 1, fails=(0, 1))}), retry=retry) as h:
        h.process(Question(1))
        h.clock.advance(1)
        h.finish()
        assert (h.output(), h.clock.now()) == ([Answer(1, 2)], 2)
    with harness(Promised({2: after(1, 1, fails=(0, 1))}), retry=retry) as h:
        h.process(Question(2))
        h.clock.advance(1)
        with pytest.raises(ServiceError, match="gave up after 2 calls"):
            h.finish()


# --------------------------------------------------------------------------------------------------- giving up


def test_abandoned_element_is_quarantined_with_last_error():
    with harness(Promised({1: after(0, fails=(0,))}), on_failure=OnFailure.QUARANTINE) as h:
        h.process(Question(1))
        h.process(Question(2))
        assert h.output() == [QuarantinedRecord(Question(1), "Unavailable: call 1 for 1"), Answer(2, 1)]


def test_abandoned_element_emits_its_default():
    class WithDefault(Promised):
        def default(self, question, error, /):
            return [Answer(question.number, 0)]

    with harness(WithDefault({1: after(0, fails=(0,))}), on_failure=OnFailure.DEFAULT) as h:
        h.process(Question(1))
        assert h.output() == [Answer(1, 0)]


def test_missing_default_is_the_functions_fault():
    with (
        harness(Promised({1: after(0, fails=(0,))}), on_failure=OnFailure.DEFAULT) as h,
        pytest.raises(UserFunctionError, match=r"no default\(\)"),
    ):
        h.process(Question(1))


# -------------------------------------------------------------------------------------------- parking, restarts


@pytest.mark.parametrize("mode", UNORDERED)
def test_parked_element_takes_no_capacity(mode):
    retry = FixedDelay(max_retries=5, delay=timedelta(hours=1))
    with harness(
        Promised({1: after(0, fails=(0,))}), mode, capacity=1, retry=retry, park_after=timedelta(seconds=1)
    ) as h:
        h.process(Question(1))
        assert h.statistics().parked == 1
        h.process(Question(2))
        assert numbers(h.output()) == [2]
        h.clock.advance(3_600_000)
        assert h.output() == [Answer(1, 2)]


def test_parked_elements_due_together_respect_capacity():
    function = Promised({number: after(0, 5, fails=(0,)) for number in range(3)})
    with harness(function, capacity=1, retry=FixedDelay(max_retries=1, delay=50 * MS), park_after=0 * MS) as h:
        for number in range(3):
            h.process(Question(number))
        h.clock.advance(50 + 15)
        assert numbers(h.output()) == [0, 1, 2]
        assert function.most == 1


def test_deadline_of_parked_element_ends_with_call():
    """The deadline is removed with the call that had it."""
    # Accepted at 0 with 1,000 ms; parked at 900 until 950, with 100 ms left of the timeout, but at least half of it.
    retry = FixedDelay(max_retries=1, delay=50 * MS)
    options = {"retry": retry, "park_after": 0 * MS, "recovery": RecoveryOption.COST_TIME}
    with harness(Promised({1: [(0.9, False), (0.3, True)]}), **options) as h:
        h.process(Question(1))
        h.clock.advance(1250)
        assert h.output() == [Answer(1, 2)]


@pytest.mark.parametrize("mode", OutputMode)
def test_parked_elements_that_come_due_take_their_turn(mode):
    # All elements are parked at once and due at once. The capacity limits their calls as well.
    scripts = {number: after(0, 10, fails=(0,)) for number in range(6)}
    retry = FixedDelay(max_retries=5, delay=100 * MS)
    with harness(Promised(scripts), mode, capacity=2, retry=retry, park_after=0 * MS) as h:
        for number in range(6):
            h.process(Question(number, str(number)))
        h.clock.advance(100 + 29)
        assert (h.function.most, h.statistics().emitted + h.statistics().completed) == (2, 4)
        h.clock.advance(1)
        assert len(h.output()) == 6


def test_elements_of_blocked_key_wait_in_order():
    retry = FixedDelay(max_retries=5, delay=1000 * MS)
    with harness(Promised({1: after(0, fails=(0,))}), OutputMode.KEYED_ORDERED, retry=retry, park_after=0 * MS) as h:
        for number, key in ((1, "a"), (2, "a"), (3, "b")):
            h.process(Question(number, key))
        h.clock.advance(500)
        h.process(Question(4, "a"))
        assert (numbers(h.output()), h.function.calls, h.statistics().parked) == ([3], [1, 3], 1)
        h.clock.advance(500)
        assert (numbers(h.output()), h.function.calls) == ([1, 2, 4], [1, 3, 1, 2, 4])


def test_keyed_ordered_end_calls_blocked_keys_last_element():
    """At the end of input, all elements of a blocked key are called, up to the last."""
    retry = FixedDelay(max_retries=5, delay=1000 * MS)
    scripts = {1: after(0, 5, fails=(0, 1)), 2: after(5), 3: after(1)}
    with harness(
        Promised(scripts), OutputMode.KEYED_ORDERED, retry=retry, park_after=0 * MS, on_failure=OnFailure.QUARANTINE
    ) as h:
        for number in (1, 2, 3):
            h.process(Question(number, "a"))
        h.finish()
        assert [getattr(output, "number", None) for output in h.output()] == [None, 2, 3]
        assert (h.clock.now(), h.statistics().queued) == (5 + 5 + 1, 0)


@pytest.mark.parametrize("mode", OutputMode)
def test_function_failing_to_open_leaves_clock_unchanged(mode):
    class Closed(Promised):
        async def open(self, services, /):
            await asyncio.sleep(1)
            raise OSError("no client")

    before = clock.use(clock.SystemClock())
    clock.use(before)
    with pytest.raises(UserFunctionError, match="no client"):
        harness(Closed(), mode)
    assert clock.use(before) is before


@pytest.mark.parametrize("mode", OutputMode)
def test_opening_and_closing_may_take_time(mode):
    """Closing interrupts calls."""

    class Slow(Promised):
        async def open(self, services, /):
            await asyncio.sleep(1)
            await super().open(services)

        async def close(self):
            await asyncio.sleep(1)
            await super().close()

    with harness(Slow({1: after(99_000)}), mode) as h:
        h.process(Question(1, "a"))
        h.process(Question(2, "a"))
    assert (h.function.log, h.function.running) == (["open", "close"], 0)


@given(
    drawn=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 3)), max_size=20),
    delay=st.sampled_from([0, 15]),
)
def test_keyed_ordered_calls_begin_as_in_jobs(drawn, delay):
    questions = [Question(number, key) for number, (key, _, _) in enumerate(drawn)]
    scripts = {number: after(*[ms] * 3, fails=range(fails)) for number, (_, ms, fails) in enumerate(drawn)}
    options = {
        "capacity": len(drawn) + 1,
        "timeout": 99_000 * MS,
        "retry": FixedDelay(max_retries=2, delay=delay * MS),
        "on_failure": OnFailure.QUARANTINE,
    }
    in_job, stepped = Promised(scripts), Promised(scripts)
    answers = as_a_job(questions, AsyncWait("ask", in_job, OutputMode.KEYED_ORDERED, **options))
    with harness(stepped, OutputMode.KEYED_ORDERED, **options) as h:
        for question in questions:
            h.process(question)
        h.clock.advance(99_000)
        answered = [output for output in h.output() if isinstance(output, Answer)]
    assert sorted(stepped.begun) == sorted(in_job.begun)
    assert sorted(answered, key=lambda item: item.number) == answers


def as_a_job(questions, wait):
    """Return the answers of a job's keyed-ordered wait."""
    keyed = [(question.key.encode(), Emitted(record_order(question.number), 0, 0, question)) for question in questions]
    loop = VirtualLoop()
    virtual = LoopClock(loop, lambda: None)
    loop.let_time_run()
    try:
        return [emission.record for emission in KeyedOrderedWait(AsyncWaitOperator(wait, {}), loop=loop).run(keyed)]
    finally:
        loop.close()
        clock.use(virtual.replaced)


def test_in_ordered_mode_nothing_overtakes_a_parked_element():
    retry = FixedDelay(max_retries=5, delay=timedelta(hours=1))
    with harness(Promised({1: after(0, fails=(0,))}), OutputMode.ORDERED, retry=retry, park_after=timedelta(0)) as h:
        h.process(Question(1))
        h.process(Question(2))
        assert h.output() == []
        h.clock.advance(3_600_000)
        assert numbers(h.output()) == [1, 2]


#   attempts at 0 and 300 ms; taken up at 10,000 ms, when 300 ms were spent in the harness. Of 1,000 ms are left:
#   restart 1,000; latency first 1,000 - 10,000, at least 1,000 / 5; cost 1,000 - 300


@pytest.mark.parametrize(
    ("recovery", "left", "attempts"),
    [(RecoveryOption.RESTART, 1000, 4), (RecoveryOption.LATENCY_FIRST, 200, 2), (RecoveryOption.COST_TIME, 700, 2)],
)
def test_remaining_timeout_after_a_restart(recovery, left, attempts):
    retry = FixedDelay(max_retries=4, delay=300 * MS)
    with harness(Promised({1: after(0, 0, fails=(0, 1))}), retry=retry) as h:
        h.process(Question(1))
        h.clock.advance(300)
        snapshot = h.snapshot()
    assert snapshot.queued[0].attempts == 2
    silent = Promised({1: after(99_000)})
    with AsyncWaitHarness.restore(
        snapshot, silent, capacity=10, timeout=1000 * MS, retry=retry, recovery=recovery, now=10_000
    ) as h:
        h.clock.advance(left - 1)
        assert silent.calls == [1]
        with pytest.raises(ServiceError, match="no response"):
            h.clock.advance(1)


def test_clock_set_back_gives_whole_timeout_at_most():
    silent = Promised({1: after(99_000)})
    with harness(silent) as h:
        h.clock.advance(90_000)
        h.process(Question(1))
        snapshot = h.snapshot()
    options = {"timeout": 1000 * MS, "recovery": RecoveryOption.LATENCY_FIRST, "now": 10_000}
    with (
        AsyncWaitHarness.restore(snapshot, Promised({1: after(99_000)}), **options) as h,
        pytest.raises(ServiceError, match="no response within 1 s"),
    ):
        h.clock.advance(1000)


def test_restart_recovery_gives_all_attempts_again():
    """Any other recovery option leaves only the remaining attempts."""
    for recovery, calls in ((RecoveryOption.RESTART, 3), (RecoveryOption.COST_TIME, 1)):
        retry = FixedDelay(max_retries=2, delay=10 * MS)
        with harness(Promised({1: after(0, 0, fails=(0, 1))}), retry=retry) as h:
            h.process(Question(1))
            h.clock.advance(10)
            snapshot = h.snapshot()
        failing = Promised({1: after(0, 0, 0, fails=(0, 1, 2))})
        with AsyncWaitHarness.restore(snapshot, failing, timeout=1000 * MS, retry=retry, recovery=recovery) as h:
            with pytest.raises(ServiceError):
                h.clock.advance(100)
            assert len(failing.calls) == calls


# -------------------------------------------------------------------------------------------------- properties

script = st.lists(st.tuples(st.integers(0, 40).map(lambda ms: ms / 1000), st.booleans()), max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("process"), st.sampled_from("abc")),
        st.tuples(st.just("watermark"), st.just("")),
        st.tuples(st.just("advance"), st.integers(1, 60)),
        st.tuples(st.just("restart"), st.integers(0, 500)),
    ),
    max_size=25,
)


class Story:
    """Drives a harness through steps and restarts, and records all events."""

    def __init__(self, mode, scripts, options):
        self.mode, self.options = mode, options
        self.function = Promised(scripts)
        self.harness = harness(self.function, mode, **options)
        self.taken, self.out, self.last_watermark = [], [], 0
        self.completed = set()

    def step(self, what, argument):
        h = self.harness
        try:
            if what == "process":
                question = Question(len([element for element in self.taken if isinstance(element, Question)]), argument)
                h.process(question)
                self.taken.append(question)
            elif what == "watermark":
                h.watermark(self.last_watermark + 1)
                self.last_watermark += 1
                self.taken.append(Watermark(self.last_watermark))
            elif what == "advance":
                h.clock.advance(argument)
            else:
                self.restart(argument)
        except CapacityFull:
            # The number exceeds the capacity if other elements took the place of a parked element, and that element
            # continues.
            assert h.statistics().queued - h.statistics().parked >= self.options["capacity"]
        self.look()

    def look(self):
        self.out += self.harness.output()
        assert self.function.most <= self.options["capacity"]
        assert self.mode is not OutputMode.KEYED_ORDERED or not self.function.overlapping
        pending = [element for element in self.harness.snapshot().queued if not isinstance(element, int)]
        for row in pending:
            if row.status == "completed":
                self.completed.add(row.sequence)
        ended = [
            o.number if isinstance(o, Answer) else o.record.number for o in self.out if not isinstance(o, Watermark)
        ]
        waiting = [row.sequence - 1 - self.watermarks_before(row) for row in pending]
        taken = [element.number for element in self.taken if isinstance(element, Question)]
        assert sorted([*ended, *waiting]) == sorted(taken)

    def watermarks_before(self, row):
        del row
        return 0  # only records take an ordinal

    def restart(self, outage):
        before = len(self.function.calls)
        snapshot, now = self.harness.snapshot(), self.harness.clock.now() + outage
        key = self.harness.key
        self.harness.close()
        asked = self.function.calls[:before]
        self.function = Promised(self.function.scripts)
        self.function.calls = asked
        answered = {row.sequence - 1 for row in snapshot.queued if not isinstance(row, int) and row.result is not None}
        self.harness = AsyncWaitHarness.restore(
            snapshot, self.function, mode=self.mode, key=key, now=now, timeout=1000 * MS, **self.options
        )
        self.answered = getattr(self, "answered", set()) | answered
        self.counted = {number: asked.count(number) for number in self.answered}

    def end(self):
        for _ in range(200):
            if not self.harness.statistics().queued:
                break
            self.harness.clock.advance(100)
        self.look()
        assert not self.harness.statistics().queued
        self.harness.close()
        for number, calls in getattr(self, "counted", {}).items():
            assert self.function.calls.count(number) == calls, "a completed result was asked for again"


@examples(150)
@given(
    mode=st.sampled_from(OutputMode),
    drawn=steps,
    scripts=st.dictionaries(st.integers(0, 12), script),
    capacity=st.integers(1, 6),
    park_after=st.sampled_from([None, 0, 15]),
    retries=st.integers(0, 3),
    recovery=st.sampled_from(RecoveryOption),
)
def test_elements_are_emitted_quarantined_or_pending_in_order(
    mode, drawn, scripts, capacity, park_after, retries, recovery
):
    story = Story(
        mode,
        scripts,
        {
            "capacity": capacity,
            "retry": FixedDelay(max_retries=retries, delay=20 * MS),
            "park_after": None if park_after is None else park_after * MS,
            "on_failure": OnFailure.QUARANTINE,
            "recovery": recovery,
        },
    )
    for what, argument in drawn:
        story.step(what, argument)
    story.end()
    assert_order(mode, story.taken, story.out)


def test_continued_parked_element_may_exceed_capacity():
    options = {"capacity": 1, "park_after": 0 * MS, "retry": FixedDelay(max_retries=1, delay=20 * MS)}
    with harness(Promised({0: after(0, 50, fails=(0,))}), OutputMode.ORDERED, **options) as h:
        h.process(Question(0))
        h.watermark(1)
        h.clock.advance(20)
        with pytest.raises(CapacityFull):
            h.watermark(2)
        assert (h.statistics().queued, h.statistics().parked) == (2, 0)
        h.clock.advance(100)
        assert [type(output) for output in h.output()] == [Answer, Watermark]


def assert_order(mode, taken, out):
    def name(element):
        return (
            element.number
            if isinstance(element, Answer | Question)
            else element.record.number
            if isinstance(element, QuarantinedRecord)
            else element
        )

    came, went = [name(element) for element in taken], [name(element) for element in out]
    assert len(came) == len(went)
    if mode is OutputMode.ORDERED:
        assert went == came
        return
    if mode is OutputMode.UNORDERED_PROCESSING_TIME:
        assert sorted(map(str, went)) == sorted(map(str, came))
        return
    assert sets_of(went) == sets_of(came)
    if mode is OutputMode.KEYED_ORDERED:
        keys = {element.number: element.key for element in taken if isinstance(element, Question)}
        for key in "abc":
            assert [n for n in went if keys.get(n, "") == key] == [n for n in came if keys.get(n, "") == key]


def sets_of(names):
    """Return the outputs between watermarks, without their order."""
    results, current = [], set()
    for name in names:
        if isinstance(name, Watermark):
            results += [current, name]
            current = set()
        else:
            current.add(name)
    return [*results, current]
