"""Tasks of a stage: what they leave to Python's cycle collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from headrace.run.tasks import without_collector


def test_task_frees_cycles_of_user_code():
    class Node:
        """An object of user code that refers to itself."""

        def __init__(self):
            self.itself = self

    with without_collector():
        node = Node()
        reference = weakref.ref(node)
        del node
        assert reference() is not None
    assert reference() is None


def test_failed_task_switches_the_collector_on():
    def fail():
        with without_collector():
            assert not gc.isenabled()
            raise ValueError("a task failed")

    with pytest.raises(ValueError, match="a task failed"):
        fail()
    assert gc.isenabled()
