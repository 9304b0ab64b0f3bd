"""Threads of the commit protocol: the real implementation."""

from __future__ import annotations

import threading

import pytest

from headrace import threads


def test_results_come_in_the_order_of_items():
    first = threading.Event()

    def work(item):
        if item == 1:
            assert first.wait(20)  # both are at work at once
        else:
            first.set()
        return item * 10

    assert threads.in_parallel(work, [1, 2]) == [10, 20]
    assert threads.in_parallel(work, []) == []


def test_first_failed_item_raises():
    both = threading.Barrier(2)

    def work(item):
        both.wait(20)
        raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        threads.in_parallel(work, [1, 2])


def test_work_is_repeated_until_the_block_ends():
    beats = threading.Semaphore(0)
    with threads.repeating(0.001, beats.release, "heart"):
        assert all(beats.acquire(timeout=20) for _ in range(3))
        assert [thread for thread in threading.enumerate() if thread.name == "heart"]
    assert not [thread for thread in threading.enumerate() if thread.name == "heart"]


def test_lock_has_one_holder_at_a_time():
    lock = threads.lock()
    assert isinstance(lock, type(threading.Lock()))
    with lock:
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)


class _Table:
    def __init__(self, other: list[_Table]) -> None:
        self.other, self.reads = other, 0

    @threads.read_once
    def rows(self) -> int:
        """Rows of the table."""
        self.reads += 1
        return 1 + sum(threads.in_parallel(lambda table: table.rows, self.other))


def test_property_is_read_once() -> None:
    """The second look finds what the first one read."""
    table = _Table([])

    assert (table.rows, table.rows, table.reads) == (1, 1, 1)


def test_property_is_read_while_another_waits() -> None:
    """A thread reads the property of one object while the property of another is being read."""
    assert _Table([_Table([])]).rows == 2
