"""Measure the cost of a piece of work: seconds, and CPU seconds of the whole process tree."""

import time
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass
class Cost:
    """Wall and CPU seconds of all blocks that ran inside `measured`."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def measured(cost=None):
    """Yield a `Cost`; when the block ends, add its seconds, to `cost` if given."""
    cost = Cost() if cost is None else cost
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield cost
    cost.wall += time.perf_counter() - wall
    cost.cpu += cpu_seconds() - cpu


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
