"""Messages that tell the user about the events of a run. Times are milliseconds."""

from __future__ import annotations

import pytest

from headrace.log.warnings import RunWarning
from headrace.run.events import RunEvents
from headrace.state.ttl import Gap, StoredTtl, TtlHistory

HOUR = 3_600_000


@pytest.fixture
def events():
    return []


@pytest.fixture
def run_events(events):
    return RunEvents("demo", events.append)


def test_run_without_waiting_elements_logs_no_wait(run_events, events):
    run_events.waiting(0, None)
    run_events.long_histories(0)
    assert events == []


@pytest.mark.parametrize(
    ("seconds", "when"),
    [(None, ""), (90, ", the next attempt is due in 90 s"), (-5, ", the next attempt is due in 0 s")],
)
def test_waiting_elements_name_the_next_attempt(run_events, events, clock, seconds, when):
    due = None if seconds is None else clock.now() + seconds * 1000
    run_events.waiting(1234, due)
    (event,) = events
    assert event.message == f"1,234 elements wait for services{when} (headrace waiting demo --calls)"
    assert (event.kind, event.fields) == ("waiting", {"pending": 1234, "due": due})


@pytest.mark.parametrize(
    ("watermark", "rest"),
    [
        (None, ""),
        (2 * HOUR, ", and by 1:00:00 where they expire by the watermark, which had run ahead of the clock"),
        (9 * HOUR, ", and by 0:00:00 where they expire by the watermark, which had run ahead of the clock"),
    ],
)
def test_new_pause_is_logged_once(run_events, events, watermark, rest):
    earlier = Gap(0, 1)
    before = TtlHistory(gaps=(earlier,))
    run_events.ttl(before, TtlHistory(gaps=(earlier, Gap(HOUR, 3 * HOUR, watermark))))
    (event,) = events
    assert event.kind == "gap"
    assert (
        event.message
        == f"the job was paused for 2:00:00: entries of states with OnGap.PROLONG live longer by this time{rest}"
    )


def test_only_a_changed_ttl_is_logged(run_events, events):
    day, hours = StoredTtl(86_400_000, "event", "watermark"), StoredTtl(7_200_000, "processing", "processing", 60_000)
    before = TtlHistory(declared={"legs.total": day, "legs.first": day, "legs.last": None, "gates.last": day})
    after = TtlHistory(declared={"legs.total": hours, "legs.first": day, "legs.last": day, "board.new": day})
    run_events.ttl(before, after)
    assert [(event.kind, event.message) for event in events] == [
        ("ttl", "TTL of legs.last: off until now, from now on 1 day, 0:00:00 from event time by watermark"),
        (
            "ttl",
            f"TTL of legs.total: {day} until now, from now on 2:00:00 from processing time by processing time, prolonged by gaps over 0:01:00",
        ),
    ]


def test_degrading_warning_reaches_report_and_log(run_events, events):
    warning = RunWarning("late", "5 rows were late", {"rows": 5})
    run_events.degrade(warning)
    assert run_events.warnings == [warning]
    assert [(event.kind, event.message, event.fields) for event in events] == [
        ("warning", "5 rows were late", {"kind": "late", "rows": 5})
    ]
