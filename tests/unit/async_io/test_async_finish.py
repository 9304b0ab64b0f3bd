"""`headrace run --finish`: each waiting element gets one more call, due or not, and afterwards no element waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import CircuitBreaker, FixedDelay, OnFailure, OutputMode, RecoveryOption
from headrace.errors import ServiceError
from tests.unit.async_io.test_async_micro_batches import MODES, MS, Job, script
from tests.unit.support.asking import Answer, Promised

FAILS = (0.0, False)
NEVER = (1e6, True)


def job_of(mode, function, *, delay=3_600_000, on_failure=OnFailure.QUARANTINE, **options):
    job = Job(mode, function, park_after=0 * MS, **options)
    job.wait = replace(job.wait, on_failure=on_failure, retry=FixedDelay(max_retries=9, delay=delay * MS))
    return job


@pytest.mark.parametrize("mode", MODES)
def test_parked_elements_get_one_last_call(mode):
    """At the end of input, a parked element gets one more call, even long before it is due."""
    job = job_of(mode, Promised({0: [FAILS], 1: [FAILS], 3: [FAILS, FAILS]}))
    job.micro_batch("abcd")
    job.micro_batch("", finishes=True)
    assert (sorted(job.emitted), job.given_up, job.table.rows) == ([0, 1, 2], [3], {})
    assert job.now == 0, "it has waited for a retry"


#   "a" is blocked by 0: neither 1 nor 2 was ever called


@pytest.mark.parametrize("fails", [0, 1, 9])
def test_keyed_ordered_waiters_are_called_after_parked_element(fails):
    job = job_of(OutputMode.KEYED_ORDERED, Promised({0: [FAILS] * (1 + fails), 1: [FAILS] * fails}))
    job.micro_batch("aaa")
    assert job.wait.function.calls == [0]
    job.micro_batch("", finishes=True)
    assert job.wait.function.calls == [0, 0, 1, 2]
    assert (job.emitted, job.given_up) == (([0, 1, 2], []) if not fails else ([2], [0, 1]))


@pytest.mark.parametrize("mode", MODES)
def test_open_breaker_does_not_stop_finish_calls(mode):
    breaker = CircuitBreaker(failures=1, probe_after=timedelta(hours=1), longest=timedelta(hours=1))
    job = job_of(mode, Promised({0: [FAILS] * 2, 1: [FAILS], 2: [FAILS]}), breaker=breaker)
    job.wait = replace(job.wait, capacity=1)
    job.micro_batch("abcd")
    assert (job.wait.function.calls, job.open_until) == ([0], 3_600_000)
    job.micro_batch("", finishes=True)
    assert (job.wait.function.calls, job.table.rows) == ([0, 0, 1, 2, 3], {})
    assert (job.emitted, sorted(job.given_up)) == ([3], [0, 1, 2])
    assert job.open_until is None, "3 was answered"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", [FAILS, NEVER])
def test_last_failure_follows_the_operators_setting(mode, last):
    """An element that fails its last call is abandoned as the operator's `on_failure` says."""

    class WithDefault(Promised):
        def default(self, question, error, /):
            return [Answer(question.number, 0)]

    outcomes = {}
    for on_failure in OnFailure:
        job = job_of(mode, WithDefault({0: [FAILS, last]}), on_failure=on_failure)
        job.micro_batch("a")
        before = dict(job.table.rows)
        try:
            job.micro_batch("", finishes=True)
        except ServiceError:
            assert (on_failure, job.table.rows) == (OnFailure.FAIL, before)
        outcomes[on_failure] = (job.emitted, job.given_up)
    assert outcomes == {OnFailure.FAIL: ([], []), OnFailure.QUARANTINE: ([], [0]), OnFailure.DEFAULT: ([0], [])}


def test_refused_last_answer_is_emitted_unchanged():
    """If the strategy refuses the last answer, the answer is emitted unchanged."""
    job = job_of(OutputMode.ORDERED, Promised())
    job.wait = replace(job.wait, retry=FixedDelay(max_retries=9, delay=9000 * MS, results=lambda _: True))
    job.micro_batch("a")
    assert len(job.table.rows) == 1
    job.micro_batch("", finishes=True)
    assert (job.emitted, job.table.rows) == ([0], {})


def test_new_elements_keep_all_their_retries():
    # The elements come as if an earlier wait of the chain had just released them.
    job = job_of(OutputMode.ORDERED, Promised({0: [FAILS], 1: [FAILS]}))
    job.micro_batch("a")
    job.micro_batch("b", finishes=True)
    assert (job.emitted, [row.attempts for row in job.table.rows.values()]) == ([0], [1])
    job.micro_batch("", finishes=True)
    assert (job.emitted, job.table.rows) == ([0, 1], {})


@pytest.mark.parametrize("mode", MODES)
def test_stopping_run_leaves_unfinished_elements(mode):
    job = job_of(mode, Promised({0: [FAILS, NEVER]}))
    job.micro_batch("a")
    job.micro_batch("", finishes=True, stop=lambda: True)
    assert [(row.status, row.attempts) for row in job.table.rows.values()] == [("waiting for retry", 1)]
    job.wait.function.scripts = {}
    job.micro_batch("", finishes=True)
    assert (job.emitted, job.table.rows) == ([0], {})


@given(
    mode=st.sampled_from(MODES),
    batches=st.lists(st.tuples(st.text("abc", max_size=8), st.integers(0, 120)), max_size=4),
    scripts=st.dictionaries(st.integers(0, 20), script),
    breaker=st.sampled_from([None, CircuitBreaker(failures=2, probe_after=70 * MS)]),
    recovery=st.sampled_from(RecoveryOption),
)
def test_single_calls_finish_in_one_micro_batch(mode, batches, scripts, breaker, recovery):
    """Each element gets one call in one micro-batch, and none waits."""
    job = job_of(mode, Promised(scripts), delay=50, breaker=breaker, recovery=recovery)
    for keys, pause in batches:
        job.micro_batch(keys)
        job.now += pause
    waited = [element.emitted.record.number for element in job.table.elements() if not element.is_done]
    before = len(job.wait.function.calls)
    job.micro_batch("", finishes=True)
    assert sorted(job.wait.function.calls[before:]) == sorted(waited)
    assert job.table.rows == {}
