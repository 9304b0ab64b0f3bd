"""Spans of a run, made of what its driver does and of what its tasks report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import clock
from headrace.async_io.traced_calls import MOST_CALLS, TracedCall, TracedCalls, error_text
from headrace.errors import ConfigError
from headrace.run.messages import TaskReport, TaskTrace, decode_report, encode_report
from headrace.telemetry.trace import Began, Ended, RunTrace, Span

TIMES = st.integers(-(10**6), 10**6)
LENGTHS = st.integers(0, 10**6)
OUTCOMES = st.sampled_from(["answered", "failed", "cancelled"])


@pytest.fixture
def at():
    """Return the clock of the driver."""
    virtual = clock.VirtualClock(5_000)
    with clock.installed(virtual):
        yield virtual


def trace_of(sent, *, has_spans=True):
    return RunTrace(sent.append, {"job": "demo"}, dict, has_spans=has_spans, has_points=False)


def call(seconds, begun=0.0, outcome="answered"):
    return TracedCall(seconds=seconds, begun=begun, operator="ask", outcome=outcome)


def test_part_is_sent_when_it_ends(at):
    sent = []
    trace = trace_of(sent)
    with trace.run(job="demo") as run:
        assert sent == [Began(run)]
        with trace.span("micro-batch") as batch:
            at.advance(10)
            with trace.span("stage", stage="sources", left=None):
                at.advance(20)
            assert sent == [Began(run)]
        assert sent == [Began(run), Ended(batch)]
    assert sent == [Began(run), Ended(batch), Ended(run)]
    (stage,) = batch.children
    milliseconds = 1_000_000
    assert (batch.start, stage.start, stage.end) == (5_000 * milliseconds, 5_010 * milliseconds, 5_030 * milliseconds)
    assert stage.attributes == {"stage": "sources"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("no s3://me:secret@bucket"), "ConfigError: no s3://...@bucket"),
        (ValueError("secret"), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_exception_is_the_error_of_open_parts(at, error, text):
    sent = []
    trace = trace_of(sent)
    with pytest.raises(type(error)), trace.run(), trace.span("micro-batch"):
        raise error
    assert [item.part.error for item in sent[1:]] == [text, text]


def test_run_without_traces_sends_no_spans(at):
    sent = []
    trace = trace_of(sent, has_spans=False)
    with trace.run(), trace.span("micro-batch") as span:
        span.set(rows=1)
        trace.tasks([TaskReport()], ["events"])
    assert (sent, trace.wants_tasks) == ([], False)


@given(TIMES, LENGTHS, TIMES, LENGTHS)
def test_moved_span_lies_in_its_parent(start, length, parent_start, parent_length):
    parent = Span("stage", parent_start, parent_start + parent_length)
    span = Span("task", start, start + length).within(parent)
    assert parent.start <= span.start <= span.end <= parent.end
    assert span.end - span.start == min(length, parent_length)
    if parent.start <= start and start + length <= parent.end:
        assert span.start == start


@given(st.integers(-10_000, 10_000), st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), OUTCOMES), max_size=60))
def test_tasks_of_wrong_clocks_lie_in_their_stage(skew, calls):
    kept = TracedCalls()
    for begun, seconds, outcome in calls:
        kept.note(call(seconds, 100 + begun, outcome))
    with clock.installed(clock.VirtualClock(50_000)) as _:
        trace = trace_of([])
        with trace.run() as run, trace.span("micro-batch") as batch, trace.span("stage") as stage:
            clock.sleep(3)
            report = TaskTrace(began_at=50_000 + skew, begun=100.0, ended=102.5, calls=kept)
            trace.tasks([TaskReport(task=3, trace=report, metrics={"rows_in": 7}), TaskReport()], ["events", "events"])
    (task,) = stage.children
    assert task.attributes["rows"] == 7
    assert task.attributes.get("calls_left_out", 0) == kept.left_out
    assert len(task.children) + kept.left_out == len(calls)
    for parent, child in [(run, batch), (batch, stage), (stage, task), *((task, own) for own in task.children)]:
        assert parent.start <= child.start <= child.end <= parent.end


@given(st.lists(st.tuples(st.floats(0, 9), OUTCOMES), max_size=120))
def test_slowest_calls_and_first_failures_are_kept(calls):
    noted = TracedCalls()
    for number, (seconds, outcome) in enumerate(calls):
        noted.note(call(seconds, float(number), outcome))
    answered = sorted((seconds for seconds, outcome in calls if outcome == "answered"), reverse=True)
    failed = [seconds for seconds, outcome in calls if outcome != "answered"]
    assert sorted((own.seconds for own in noted.slowest), reverse=True) == answered[:MOST_CALLS]
    assert [own.seconds for own in noted.failed] == failed[:MOST_CALLS]
    assert len(noted.slowest) + len(noted.failed) + noted.left_out == len(calls)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("GET https://api/x?key=secret&b=secret: 503", "OSError: GET https://api/x?... 503"),
        ("https://me:secret@api/x", "OSError: https://...@api/x"),
        ("https://" + "a" * 280 + ":secret@api", "OSError: https://...@api"),
        ("what? no address", "OSError: what? no address"),
        ("x" * 400, f"OSError: {'x' * 291}..."),
    ],
)
def test_text_of_an_error_hides_secrets(message, text):
    assert error_text(OSError(message)) == text


class Hostile(Exception):  # noqa: N818 - no error of this program
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [OSError("no file \udcff"), Hostile()])
def test_any_error_of_a_call_can_be_reported(error):
    call = TracedCall(seconds=1, begun=0, operator="ask", outcome="failed", error=error_text(error))
    report = TaskReport(trace=TaskTrace(calls=TracedCalls(failed=[call])))
    assert decode_report(encode_report(report)).trace.calls.failed == [call]
    assert call.error.startswith(type(error).__name__)
