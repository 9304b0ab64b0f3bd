from __future__ import annotations

import threading

import pytest

from headrace.execution.executor import InlineStateExecutor, ThreadedStateExecutor
from headrace.execution.requests import AsyncRequest
from headrace.state.backend import VALUE_PREFIX, HashMapBackend

ENTRIES = [VALUE_PREFIX + bytes([number]) for number in range(4)]


def requests(*numbers):
    return [AsyncRequest(None, ENTRIES[number], print) for number in numbers]


def filled():
    backend = HashMapBackend()
    backend.write_batch((entry, entry[-1:]) for entry in ENTRIES)
    return backend


class Gated(HashMapBackend):
    """A backend whose reads wait for the test's permission."""

    def __init__(self):
        super().__init__()
        self.gates = {entry: threading.Event() for entry in ENTRIES}
        self.begun = threading.Semaphore(0)

    def get_many(self, keys, /):
        self.begun.release()
        assert self.gates[keys[0]].wait(30)
        return super().get_many(keys)


@pytest.fixture(params=["inline", "threaded"])
def executor_of(request):
    """An executor over a backend; closed at the end."""
    created = []

    def make(backend):
        created.append(InlineStateExecutor(backend) if request.param == "inline" else ThreadedStateExecutor(backend, 2))
        return created[-1]

    yield make
    for executor in created:
        executor.close()


def test_each_request_is_answered_with_its_entry(executor_of):
    executor = executor_of(filled())
    executor.submit(requests(2, 0))
    assert executor.in_flight == 1
    assert [request.answer for request in executor.completed(wait=True)] == [b"\x02", b"\x00"]
    assert executor.in_flight == 0


def test_missing_entry_is_answered_with_none(executor_of):
    executor = executor_of(HashMapBackend())
    executor.submit(requests(1))
    (request,) = executor.completed(wait=True)
    assert (request.answer, request.error) == (None, None)


def test_backend_error_is_kept_for_the_task(executor_of):
    class Broken(HashMapBackend):
        def get_many(self, keys, /):
            raise OSError("the disk is gone")

    executor = executor_of(Broken())
    executor.submit(requests(0, 1))
    assert [str(request.error) for request in executor.completed(wait=True)] == ["the disk is gone"] * 2


def test_backend_with_missing_answers_raises_without_hanging(executor_of):
    backend = filled()
    backend.get_many = lambda _: [b""]
    executor = executor_of(backend)
    executor.submit(requests(0, 1))
    assert {type(request.error) for request in executor.completed(wait=True)} == {ValueError}


def test_waiting_without_requests_returns_immediately(executor_of):
    assert executor_of(filled()).completed(wait=True) == []


@pytest.fixture
def gated():
    backend = Gated()
    executor = ThreadedStateExecutor(backend, 2)
    yield backend, executor
    for gate in backend.gates.values():
        gate.set()
    executor.close()


def test_threads_read_while_the_task_continues(gated):
    backend, executor = gated
    executor.submit(requests(0))
    backend.begun.acquire()
    assert (executor.completed(wait=False), executor.in_flight, executor.has_room) == ([], 1, True)
    backend.gates[ENTRIES[0]].set()
    assert [request.action for request in executor.completed(wait=True)] == [ENTRIES[0]]


def test_batches_overtake_each_other(gated):
    backend, executor = gated
    executor.submit(requests(0))
    executor.submit(requests(1))
    backend.gates[ENTRIES[1]].set()
    assert [request.action for request in executor.completed(wait=True)] == [ENTRIES[1]]
    assert (executor.in_flight, executor.has_room) == (1, True)


def test_as_many_batches_run_as_threads(gated):
    backend, executor = gated
    for number in range(3):
        executor.submit(requests(number))
    assert (executor.in_flight, executor.has_room) == (3, False)
    for gate in backend.gates.values():
        gate.set()
    answered = []
    while executor.in_flight:
        answered += executor.completed(wait=True)
    assert (len(answered), executor.has_room) == (3, True)
