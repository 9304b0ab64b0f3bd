"""Sessions that begin and end while their records wait are never stored, and their results are those of single records."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.operators import Avg, Count, First, Last, Session, Sum
from headrace.operators import _sessions as _session_aggregation
from headrace.operators._result_record import ResultRecord
from headrace.operators._sessions import new_sessions
from headrace.options import AsyncStateOptions
from headrace.plan.planner import plan_stages
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from tests.unit.operators.window_jobs import Bid, window_pipeline
from tests.unit.support.deferred import Deferred
from tests.unit.support.fuzzing import examples

GAP = 6


def third(bid) -> float:
    """Return a value whose sum depends on the order."""
    return (bid.price or 0) / 3


class Visit(Struct, frozen=True):
    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    total: Annotated[int | None, Sum("price")]
    thirds: Annotated[float | None, Avg(third)]
    first: Annotated[str, First("bidder")]
    last: Annotated[int | None, Last("price")]


def course(steps):
    """Return records and watermarks of a clock that moves on: each lies somewhat behind it."""
    items, now = [], 10
    for item, advance, behind in steps:
        now += advance
        items.append((item, now - behind) if item else now - 3 * behind)
    return items


COURSES = st.lists(
    st.tuples(st.sampled_from(["a", "a", "b", ""]), st.integers(0, 7), st.integers(0, 9)), min_size=4, max_size=60
).map(course)


def play(items, *, lateness=0, backend=HashMapBackend, parts=1, **options):
    """Process `(item, time)` and watermarks (plain numbers) in tasks, one after the other; return all that they leave.

    A task ends behind each of `parts` of the items, and the next one has its state.
    """
    pipeline = window_pipeline(Session(timedelta(milliseconds=GAP)), Visit, late=True, lateness=lateness)
    operator = plan_stages(pipeline).keyed[0].operator
    store, latest, seen = backend(), None, []
    size = -(-len(items) // parts) or 1
    for begin in range(0, len(items), size):
        elements, watermarks = [], []
        before = latest
        for ordinal, item in enumerate(items[begin : begin + size], start=begin):
            order = record_order(ordinal + 1)
            if isinstance(item, int):
                if latest is None or item > latest:
                    latest = item
                    watermarks.append(Watermark(order, item))
            else:
                record = Bid(item[0], item[1], ordinal % 7, str(ordinal))
                elements.append(Element(order, item[1], 0, encode(item[0]), record))
        process = KeyedProcess(
            operator,
            store,
            records=(Bid,),
            watermark=before,
            last_watermark=latest,
            options=AsyncStateOptions(**options),
        )
        process.run([elements], watermarks)
        changes = [(state, list(changed)) for state, changed in process.changes()]
        timers = process.timers.changes()
        seen.append(
            (
                process.metrics,
                process.timers.statistics().fired,
                process.emitted,
                process.side_outputs,
                [sorted(map(without_stamp_of_removal, changed), key=str) for _, changed in changes],
                sorted(timers),
            )
        )
        for state, changed in changes:
            store.write_batch(state.writes(changed))
        store.write_batch(process.timers.writes(timers))
    return seen


def without_stamp_of_removal(change):
    """A removed entry has the time of its last write, and bundles make fewer writes."""
    return change if change.raw is not None else change._replace(stamp=0)


AT_ONCE = {"lateness": 0, "backend": HashMapBackend, "buffer_size": 1, "portion": 100, "parts": 1}


@pytest.mark.slow
@examples(300)
@given(
    items=COURSES,
    lateness=st.sampled_from([0, 0, 0, 4]),
    backend=st.sampled_from([HashMapBackend, Deferred]),
    buffer_size=st.sampled_from([1, 1000]),
    portion=st.sampled_from([4, 100]),
    parts=st.sampled_from([1, 2, 5]),
)
@example(items=[("a", 10), ("a", 12), ("a", 30), 18, ("a", 33), ("a", 19), 50], **AT_ONCE)
@example(items=[("a", 10), ("a", 40), ("a", 20), 16, ("a", 41), 26, ("b", 42), 50], **AT_ONCE)
@example(items=[("a", 10), ("a", 18), ("a", 15), ("a", 24), 29, ("a", 31), 40], **AT_ONCE)
def test_waiting_sessions_equal_single_records(items, lateness, backend, buffer_size, portion, parts):
    singly = play(items, lateness=lateness, parts=parts, in_flight_records_limit=1)
    assert singly == play(
        items,
        lateness=lateness,
        backend=backend,
        parts=parts,
        in_flight_records_limit=portion,
        buffer_size=buffer_size,
    )


def test_ended_sessions_are_never_stored(monkeypatch):
    def rising(count, items="abc"):
        """Return records of some items, each item with a session of two records, and a watermark behind each three sessions."""
        result = []
        for number in range(count):
            start = number * 20
            for item in items:
                result += [(item, start), (item, start + 3)]
            result.append(start + 10)
        return result

    written = []
    monkeypatch.setattr(HashMapBackend, "write_batch", lambda _, writes: written.extend(writes))
    ((metrics, fired, emitted, _, changes, timers),) = play(rising(5))
    assert (metrics["records"], fired, len(emitted)) == (30, 15, 15)
    assert (changes, timers, written) == ([[], []], [], [])


def test_open_session_waits_for_its_end():
    """Its records wait beyond watermarks, also those that end another session of the key."""
    ((_, fired, emitted, _, changes, timers),) = play([("a", 10), ("a", 20), 16, ("a", 23), 25, 40])
    assert [(row.record.window_start, row.record.bids) for row in emitted] == [(10, 1), (20, 2)]
    assert (fired, changes, timers) == (2, [[], []], [])


def test_long_session_is_stored_at_last(monkeypatch):
    """Its records would be looked at once more with each of them."""
    looks = []

    def counted(bundle, gap):
        looks.append(len(bundle.records))
        return new_sessions(bundle, gap)

    monkeypatch.setattr(_session_aggregation, "new_sessions", counted)
    items = [item for at in range(0, 600, 5) for item in (("a", at), at - 1)]
    ((metrics, fired, emitted, _, changes, timers),) = play([*items, 700])
    assert (metrics["records"], fired, [row.record.bids for row in emitted]) == (120, 1, [120])
    assert (changes, timers) == ([[], []], [])
    assert len(looks) <= 9


def test_records_that_wait_at_the_end_are_stored():
    ((_, _, emitted, _, changes, timers),) = play([("a", 10), ("a", 20), 16])
    assert [row.record.window_start for row in emitted] == [10]
    assert [[change.key_json for change in changed] for changed in changes] == [[b'"a"'], [b'"a"']]
    assert [change.timer.timestamp for change in timers] == [20 + GAP - 1]


def test_error_of_result_names_the_timer(monkeypatch):
    def fail(*_):
        raise ValueError("no result")

    monkeypatch.setattr(ResultRecord, "result", fail)
    with pytest.raises(UserFunctionError, match="timer at 15 ms in namespace '10'"):
        play([("a", 10), 16])
