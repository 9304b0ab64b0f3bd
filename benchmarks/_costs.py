"""What a piece of work costs: seconds, and CPU seconds of the whole process tree."""

import time
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass
class Cost:
    """Seconds of the clock, and of CPU, of all that `measured` has been around."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def measured(cost=None):
    """Yield a `Cost` that has the block's seconds after it; they are added to `cost`, if there is one."""
    cost = Cost() if cost is None else cost
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield cost
    cost.wall += time.perf_counter() - wall
    cost.cpu += cpu_seconds() - cpu


def cpu_seconds():
    """CPU seconds of this process and all below it (driver, JVM, Python workers), those that have ended too."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
