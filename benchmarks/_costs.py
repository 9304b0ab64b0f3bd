"""Measure the cost of a piece of work: seconds, and CPU seconds of the whole process tree."""

import ctypes
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import psutil

_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Cost:
    """Wall and CPU seconds of all blocks that ran inside `measured`."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def measured(cost=None):
    """Yield a `Cost`; when the block ends, add its seconds, to `cost` if given."""
    cost = Cost() if cost is None else cost
    adopt_orphans()
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield cost
    cost.wall += time.perf_counter() - wall
    cost.cpu += cpu_seconds() - cpu


@cache
def adopt_orphans():
    """Make this process the parent of descendants whose own parent ends.

    Spark's daemon of Python workers ends at times. Its workers would then leave the tree, and take their CPU seconds with them: a
    query has cost -8 s. As children of this process they count, also after their end, since nobody waits for them. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds():
    """Return the CPU seconds of this process and its descendants (driver, JVM, Python workers), including ended ones."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
