from __future__ import annotations

import pytest

from headrace.execution.record_context import RecordContext
from headrace.execution.requests import AsyncRequest, RequestBuffer


@pytest.fixture
def buffer():
    return RequestBuffer()


def record(name, key=b"k"):
    return RecordContext(key, name)


def unblocked(buffer, key=b"k"):
    waiter = buffer.unblock(key)
    return waiter and waiter.context.record


def test_active_requests_are_taken_together_in_order(buffer):
    requests = [AsyncRequest(record("r"), number, print) for number in range(3)]
    buffer.active += requests
    assert (buffer.take_active(), buffer.active) == (requests, [])


def test_requests_are_taken_up_to_the_limit(buffer):
    requests = [AsyncRequest(record("r"), number, print) for number in range(3)]
    buffer.active += requests
    assert [buffer.take_active(2), buffer.take_active(2), buffer.take_active(2)] == [requests[:2], requests[2:], []]


def test_records_of_a_key_wait_in_line(buffer):
    for name in ("first", "second", "third"):
        buffer.block(record(name))
    assert [unblocked(buffer) for _ in range(4)] == ["first", "second", "third", None]


def test_unblocking_releases_one_record_of_the_key(buffer):
    for name, key in (("a1", b"a"), ("b1", b"b"), ("a2", b"a")):
        buffer.block(record(name, key))
    assert unblocked(buffer, b"a") == "a1"
    assert buffer.blocked == 2
    assert [unblocked(buffer, b"b"), unblocked(buffer, b"b"), unblocked(buffer, b"a")] == ["b1", None, "a2"]
    assert buffer.blocked == 0


def test_request_may_wait_before_all_others(buffer):
    buffer.block(record("second"))
    buffer.block_first(record("first"))
    assert [unblocked(buffer), unblocked(buffer)] == ["first", "second"]


def test_unused_keys_leave_nothing_behind(buffer):
    buffer.block(record("only"))
    unblocked(buffer)
    assert buffer._blocking == {}


def test_later_requests_join_the_waiting_first_one(buffer):
    waiting = record("r")
    requests = [AsyncRequest(waiting, number, print) for number in range(3)]
    assert not buffer.join(requests[0])
    buffer.block(waiting, requests[0])
    assert [buffer.join(request) for request in requests[1:]] == [True, True]
    assert buffer.blocked == 1
    assert (buffer.unblock(b"k").request, buffer.take_joined(waiting)) == (requests[0], requests[1:])
    assert not buffer.join(requests[0])


def test_record_waiting_again_keeps_joined_requests(buffer):
    waiting = record("r")
    first, second = (AsyncRequest(waiting, number, print) for number in range(2))
    buffer.block(waiting, first)
    buffer.join(second)
    buffer.block_first(*buffer.unblock(b"k"))
    assert buffer.take_joined(waiting) == [second]
