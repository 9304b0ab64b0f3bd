from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import TimeDomain
from headrace.state.timers import (
    DOMAINS,
    EVENT_TIME_CLEANUP,
    PROCESSING_TIME_CLEANUP,
    Timer,
    TimerChange,
    TimerService,
    timer_entry,
    timer_of,
)

A, B = b'"a"', b'"b"'
EVENT, PROCESSING = TimeDomain


def fire(service, now, domain=EVENT):
    """Remove the due timers key by key."""
    for key in service.keys_due(now, domain):
        while timer := service.take_due(key, now, domain):
            assert not service.take(timer)
            yield timer


@pytest.fixture
def service_of(backend):
    """Return the timers as the next task loads them."""
    return lambda last_watermark: TimerService(backend, last_watermark)


@pytest.fixture
def commit(backend):
    """Hand the changes to the backend, and return them."""

    def commit(service):
        changes = service.changes()
        backend.write_batch(service.writes(changes))
        return changes

    return commit


def test_timer_fires_once_at_its_time(service_of):
    service = service_of(100)
    service.register(Timer(10, A))
    service.register(Timer(10, A))
    assert list(fire(service, 9)) == []
    assert list(fire(service, 10)) == [Timer(10, A)]
    assert list(fire(service, 100)) == []
    assert service.fired == 1


def test_key_timers_fire_in_time_order(service_of):
    """Keys take turns by their first timer."""
    service = service_of(100)
    for timer in (Timer(30, A), Timer(10, B), Timer(-5, B), Timer(10, A)):
        service.register(timer)
    assert list(fire(service, 30)) == [Timer(-5, B), Timer(10, B), Timer(10, A), Timer(30, A)]


def test_timer_registered_during_firing_takes_its_turn(service_of):
    service = service_of(100)
    service.register(Timer(10, A))
    service.register(Timer(30, A))
    due = fire(service, 50)
    assert next(due) == Timer(10, A)
    service.register(Timer(20, A))
    service.register(Timer(60, A))
    assert list(due) == [Timer(20, A), Timer(30, A)]


def test_deleted_timer_does_not_fire(service_of):
    service = service_of(100)
    service.register(Timer(10, A))
    service.register(Timer(10, B))
    service.delete(Timer(10, A))
    service.delete(Timer(99, A))
    assert list(fire(service, 100)) == [Timer(10, B)]


def test_deleted_and_reregistered_timer_fires_once(service_of):
    service = service_of(100)
    service.register(Timer(10, A))
    service.delete(Timer(10, A))
    service.register(Timer(10, A))
    assert list(fire(service, 100)) == [Timer(10, A)]


def test_registered_then_deleted_timer_leaves_no_change(service_of, commit, backend):
    service = service_of(100)
    service.register(Timer(10, A))
    service.register(Timer(500, B))
    list(fire(service, 100))
    service.delete(Timer(500, B))
    service.delete(Timer(900, B))
    assert commit(service) == []
    assert list(backend.items()) == []


def test_only_changed_timers_are_reported_as_changes(service_of, commit, backend):
    service = service_of(None)
    for timer in (Timer(10, A), Timer(200, A), Timer(300, A)):
        service.register(timer)
    commit(service)
    later = service_of(100)
    later.register(Timer(200, A))  # the timer is registered already
    later.delete(Timer(300, A))
    later.register(Timer(400, A))
    list(fire(later, 100))
    assert sorted(commit(later)) == [
        TimerChange(Timer(10, A), registered=False),
        TimerChange(Timer(300, A), registered=False),
        TimerChange(Timer(400, A), registered=True),
    ]
    assert sorted(dict(backend.items())) == [timer_entry(Timer(200, A)), timer_entry(Timer(400, A))]


def test_taken_timer_is_removed(service_of):
    service = service_of(100)
    service.register(Timer(10, A))
    assert service.take(Timer(10, A))
    assert not service.take(Timer(10, A))
    assert list(fire(service, 100)) == []
    assert service.fired == 1


def test_only_timers_due_within_the_slice_are_loaded(service_of, commit):
    service = service_of(None)
    for time in (-7, 10, 100, 101, 5_000):
        service.register(Timer(time, A))
    commit(service)
    assert [timer.timestamp for timer in fire(service_of(100), 10_000)] == [-7, 10, 100]


times = st.integers(-(2**62), 2**62) | st.integers(-3, 3)
namespaces = st.sampled_from(["", "w", "w2", "\x01", "é"])
timers = st.builds(Timer, times, st.sampled_from([A, B, b"1", b"12"]), st.sampled_from(list(DOMAINS)), namespaces)


@given(one=timers, other=timers)
def test_entries_sort_like_timers_in_each_domain(one, other):
    def place(timer):
        return DOMAINS[timer.domain].code, *timer

    assert (timer_entry(one) < timer_entry(other)) is (place(one) < place(other))


@given(timer=timers)
def test_stored_entry_identifies_its_timer(timer):
    assert timer_of(timer_entry(timer)) == timer


def test_namespaces_separate_timers_and_order_them(service_of, commit):
    first = service_of(None)
    for namespace in ("b", "", "a", "b"):
        first.register(Timer(10, A, namespace=namespace))
    first.register(Timer(5, A, namespace="z"))
    first.delete(Timer(10, A, namespace="a"))
    first.delete(Timer(10, A, namespace="never"))
    assert len(commit(first)) == 3
    fired = [(timer.timestamp, timer.namespace) for timer in fire(service_of(10), 10)]
    assert fired == [(5, "z"), (10, ""), (10, "b")]


def test_cleanup_follows_user_timers_of_same_moment(service_of, commit):
    first = service_of(None)
    for timer in (Timer(10, A), Timer(10, A, EVENT_TIME_CLEANUP, "z"), Timer(9, A), Timer(11, A, EVENT_TIME_CLEANUP)):
        first.register(timer)
    commit(first)
    later = service_of(20)
    fired = [(timer.timestamp, str(timer.domain)) for timer in fire(later, 20)]
    assert fired == [(9, "event_time"), (10, "event_time"), (10, "event_time_cleanup"), (11, "event_time_cleanup")]
    assert later.fired == 2


def test_fired_timers_are_not_read_again(backend):
    """A task is told the position up to which timers have fired."""
    backend.write_batch((timer_entry(Timer(time, A)), b"") for time in range(100))
    backend.write_batch((timer_entry(Timer(time, A, PROCESSING)), b"") for time in range(100))
    counting = Counting(backend)
    service = TimerService(counting, 60, 70, fired_until={"event_time": 57, "processing_time": 68})
    assert [timer.timestamp for timer in fire(service, 60)] == [58, 59, 60]
    assert [timer.timestamp for timer in fire(service, 70, PROCESSING)] == [69, 70]
    assert counting.given == 5
    assert service.fired_until() == {"event_time": 60, "processing_time": 70}


def test_due_timers_are_not_looked_up(backend):
    """A task has read all of them when it began: only later ones must be asked for, one by one."""
    backend.write_batch((timer_entry(Timer(time, A)), b"") for time in (10, 20, 90))
    service = TimerService(backend, 60, 70)
    for time in (5, 10, 80, 90):
        service.register(Timer(time, A))
    service.register(Timer(50, B))
    service.delete(Timer(50, B))
    service.delete(Timer(20, A))
    with mock.patch.object(type(backend), "get_many", autospec=True, side_effect=type(backend).get_many) as asked:
        changes = service.changes()
    assert sorted(changes) == [
        TimerChange(Timer(5, A), True),
        TimerChange(Timer(20, A), False),
        TimerChange(Timer(80, A), True),
    ]
    assert [len(call.args[1]) for call in asked.mock_calls] == [2]


def test_skipped_timer_is_searched_again(backend):
    service = TimerService(backend, 60, 70, fired_until={"event_time": 57, "processing_time": 68})
    service.register(Timer(40, A))
    service.register(Timer(69, B, PROCESSING_TIME_CLEANUP))
    assert service.fired_until() == {"event_time": 39, "processing_time": 68}
    assert TimerService(backend, None, 7).fired_until() == {"processing_time": 7}


def test_backward_time_repeats_and_loses_no_timers(backend):
    backend.write_batch([(timer_entry(Timer(95, A, PROCESSING)), b"")])
    service = TimerService(backend, None, 90, fired_until={"processing_time": 94})
    assert list(fire(service, 90, PROCESSING)) == []
    service.register(Timer(92, A, PROCESSING))
    backend.write_batch(service.writes(service.changes()))
    later = TimerService(backend, None, 95, fired_until=service.fired_until())
    assert [timer.timestamp for timer in fire(later, 95, PROCESSING)] == [92, 95]


def test_timer_domains_are_independent(backend, commit):
    service = TimerService(backend, 100, 0)
    for timer in (Timer(10, A), Timer(10, A, PROCESSING), Timer(20, A, PROCESSING)):
        service.register(timer)
    assert list(fire(service, 100)) == [Timer(10, A)]
    commit(service)
    later = TimerService(backend, 100, 15)
    later.delete(Timer(20, A))
    assert list(fire(later, 100)) == []
    assert list(fire(later, 15, PROCESSING)) == [Timer(10, A, PROCESSING)]
    commit(later)
    assert dict(backend.items()).keys() == {timer_entry(Timer(20, A, PROCESSING))}


def test_processing_time_may_move_on_within_a_task(backend, commit):
    service = TimerService(backend, None, 10)
    for time in (5, 15, 25):
        service.register(Timer(time, A, PROCESSING))
    commit(service)
    later = TimerService(backend, None, 10)
    later.register(Timer(12, B, PROCESSING))
    assert [timer.timestamp for timer in fire(later, 10, PROCESSING)] == [5]
    later.extend(20, PROCESSING)
    assert [timer.timestamp for timer in fire(later, 20, PROCESSING)] == [12, 15]
    assert later.processing_time == 20


def test_default_processing_time_comes_from_the_clock(backend, clock):
    assert TimerService(backend, None).processing_time == clock.now()


class Counting:
    """A backend that counts the entries returned by a scan."""

    def __init__(self, backend):
        self.backend, self.given = backend, 0

    def scan(self, start, end):
        for item in self.backend.scan(start, end):
            self.given += 1
            yield item


def test_due_timers_cost_one_step_each(backend):
    domains = TimeDomain
    backend.write_batch((timer_entry(Timer(time, A, domain)), b"") for time in range(1000) for domain in domains)
    counting = Counting(backend)
    service = TimerService(counting, 1, 2)
    assert len([*fire(service, 1), *fire(service, 2, PROCESSING)]) == counting.given == 5


@given(
    slices=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.booleans(),
                    st.integers(0, 20),
                    st.sampled_from([A, B]),
                    st.sampled_from(list(DOMAINS)),
                    st.sampled_from(["", "w"]),
                )
            ),
            st.integers(0, 20),
        )
    )
)
def test_any_slice_history_leaves_exactly_live_timers(backends, slices):
    expected, watermark, fired = set(), 0, {}
    with backends.lent() as new:
        backend = new()
        for changes, step in slices:
            watermark += step
            service = TimerService(backend, watermark, processing_time=watermark + 7, fired_until=fired)
            for registers, time, key, domain, namespace in changes:
                timer = Timer(watermark - 5 + time, key, domain, namespace)
                (service.register if registers else service.delete)(timer)
                (expected.add if registers else expected.discard)(timer)
            for domain, now in zip(TimeDomain, (watermark, watermark + 7), strict=True):
                of_clock = [timer for timer in expected if DOMAINS[timer.domain].clock is domain]
                due = sorted(timer for timer in of_clock if timer.timestamp <= now)
                assert sorted(fire(service, now, domain)) == due
                expected -= {*due}
            backend.write_batch(service.writes(service.changes()))
            fired = service.fired_until()
        assert set(dict(backend.items())) == {timer_entry(timer) for timer in expected}


def test_unread_timers_are_not_looked_up(service_of, commit, backend):
    service = service_of(100)
    service.register_unread([Timer(200, A), Timer(300, A)])
    service.delete(Timer(300, A))
    with mock.patch.object(backend, "get_many", return_value=[]) as read:
        assert service.changes() == [TimerChange(Timer(200, A), registered=True)]
    assert read.mock_calls == [mock.call([])]
    commit(service)
    assert list(fire(service_of(200), 200)) == [Timer(200, A)]


def test_timers_taken_together_fire_no_more(service_of, commit):
    first = service_of(100)
    for timer in (Timer(10, A), Timer(20, A), Timer(30, B)):
        first.register(timer)
    commit(first)
    service = service_of(100)
    service.register(Timer(40, B))
    service.take_together([Timer(10, A), Timer(20, A), Timer(40, B)], 2)
    assert service.fired == 5
    assert list(fire(service, 100)) == [Timer(30, B)]
    commit(service)
    assert list(fire(service_of(100), 100)) == []
