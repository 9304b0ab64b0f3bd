"""A world that runs processes one step at a time, in an order drawn from a seed.

A process has threads. A thread runs until its next step: a step on the disk, a named place of the protocol
(`faults`), a lock, or a sleep. There the world draws the next thread. Time is virtual, and passes with each step. So
the same seed gives the same run.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

START = 1_700_000_000_000
"""When a world begins (ms)."""

LONGEST_STEP = 200
"""How long a step takes at most (ms)."""

LONGEST_WORK = 300
"""Real time after which a thread that comes to no step counts as one that never will (s)."""


class Killed(BaseException):
    """The process is gone. It runs no more code, not even in a `finally`."""


class _Stopped(BaseException):
    """The block that repeats some work has ended."""


@dataclass(eq=False)
class Process:
    """A process on a host whose clock may be wrong."""

    name: str
    host: str
    wrong_by: int = 0
    """How far its clock is ahead (ms)."""

    is_dead: bool = False
    suspended_until: int = 0
    """When it wakes up again (ms, the world's time)."""

    threads: list[SimulatedThread] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether a thread of the process still runs."""
        return not self.is_dead and not self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether all threads of the process have ended. Such a process starts no more threads."""
        return not [thread for thread in self.threads if not thread.is_done]


class SimulatedThread:
    """A thread that runs while the world waits, and waits while the world runs."""

    def __init__(self, world: World, process: Process, work: Callable[[], None]) -> None:
        self.process = process
        self.wakes_at = 0
        self.is_done = self.is_stopped = False
        self.error: BaseException | None = None
        self._world, self._work = world, work
        self._go, self._back = _held_lock(), _held_lock()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def go_on(self) -> None:
        """Let the thread run until its next step. Called by the world."""
        self._go.release()
        if not self._back.acquire(timeout=LONGEST_WORK):
            raise AssertionError(
                f"a thread of {self.process.name} waits for what the world does not know:\n{self._place()}"
            )

    def _place(self) -> str:
        frame = sys._current_frames()[self.thread.ident or 0]
        return "".join(traceback.format_stack(frame))

    def pause(self) -> None:
        """Wait until the world continues this thread. Called by the thread itself.

        Raises `Killed` if the process is dead by then.
        """
        self._back.release()
        self._go.acquire()
        self.raise_if_ended()

    def raise_if_ended(self) -> None:
        if self.process.is_dead:
            raise Killed
        if self.is_stopped:
            raise _Stopped

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.raise_if_ended()
            self._work()
        except (Killed, _Stopped):
            pass
        except BaseException as error:  # noqa: BLE001 - the world raises it
            self.error = error
        self.is_done = True
        self._back.release()


def _held_lock() -> threading.Lock:
    """Return a lock by which one thread wakes another: a semaphore costs five times as much."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class SimulatedLock:
    """A lock that lets other threads run while it waits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            self._world.step()
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class World:
    """Time, chance, and processes. It is the `clock.Clock` and the `threads.Threads` of its processes."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.time = START
        self.processes: list[Process] = []
        self._unfinished: list[Process] = []
        """Processes that may still have a thread that runs, in the order of their starts."""

        self.counts: Counter[str] = Counter()
        self.steps = 0
        self._ids = 0
        self._running: SimulatedThread | None = None

    # Processes

    def start(self, name: str, work: Callable[[], None], *, host: str = "here", wrong_by: int = 0) -> Process:
        """Start a process; it runs when the world does."""
        process = Process(name, host, wrong_by)
        self.processes.append(process)
        self._unfinished.append(process)
        self._spawn(process, work)
        return process

    def kill(self, process: Process) -> None:
        """Kill a process (`kill -9`): its threads end at their current step."""
        self.counts["kills"] += 1
        process.is_dead = True
        for thread in process.threads:
            while not thread.is_done:
                self._let_run(thread)

    @property
    def alive(self) -> list[Process]:
        """The processes that are alive, in the order of their starts."""
        return [process for process in self._unfinished if process.is_alive]

    @property
    def process(self) -> Process | None:
        """The process that runs now; None for the world itself."""
        return self._running.process if self._is_inside() and self._running else None

    def run(self, between_steps: Callable[[], None] | None = None) -> None:
        """Let all processes run to their ends. `between_steps` may kill, suspend, or start some.

        Raises the error of a thread, unless the thread was killed.
        """
        while waiting := self._waiting():
            ready = [thread for thread in waiting if self._ready_at(thread) <= self.time]
            if not ready:
                self.time = min(map(self._ready_at, waiting))
                continue
            self._let_run(self.chance.choice(ready))
            self.time += self.chance.randrange(LONGEST_STEP)
            if between_steps is not None:
                between_steps()

    def step(self) -> None:
        """Let other threads run in the middle of a thread's work. The world itself and Arrow's threads skip the step."""
        if self._is_inside() and self._running is not None:
            self._running.raise_if_ended()
            self._running.wakes_at = self.time
            self._running.pause()

    # clock.Clock

    def now(self) -> int:
        """See `Clock.now`."""
        process = self.process
        return self.time + (process.wrong_by if process else 0)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self.time / 1000

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        if self._is_inside() and self._running is not None:
            self._running.raise_if_ended()
            self._running.wakes_at = self.time + round(seconds * 1000)
            self._running.pause()
        else:
            self.time += round(seconds * 1000)

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`."""
        raise NotImplementedError

    def unique_id(self) -> str:
        """See `Clock.unique_id`."""
        self._ids += 1
        return f"{self._ids:08x}" * 4  # any part of it is unique, too

    def jitter(self) -> float:
        """See `Clock.jitter`."""
        return self.chance.random()

    # threads.Threads

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """See `Threads.map`: the work is done in any order, and others go on in between."""
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        for number in self.chance.sample(range(len(items)), len(items)):
            self.step()
            try:
                results[number] = work(items[number])
            except Exception as error:  # noqa: BLE001 - raised when all have ended
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        return [results[number] for number in range(len(items))]

    @contextmanager
    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> Iterator[None]:
        """See `Threads.repeating`."""
        del name
        process = self.process
        if process is None:
            yield
            return

        def repeat() -> None:
            while True:
                self.sleep(seconds)
                is_asleep.clear()
                work()
                is_asleep.append(True)

        is_asleep = [True]
        thread = self._spawn(process, repeat)
        try:
            yield
        finally:
            while not is_asleep:
                self.step()  # it ends what it has begun
            thread.is_stopped, thread.wakes_at = True, self.time

    def lock(self) -> SimulatedLock:
        """See `Threads.lock`."""
        return SimulatedLock(self)

    # The rest

    def _spawn(self, process: Process, work: Callable[[], None]) -> SimulatedThread:
        thread = SimulatedThread(self, process, work)
        process.threads.append(thread)
        return thread

    def _waiting(self) -> list[SimulatedThread]:
        self._unfinished = [process for process in self._unfinished if not process.is_finished]
        return [thread for process in self._unfinished for thread in process.threads if not thread.is_done]

    def _ready_at(self, thread: SimulatedThread) -> int:
        return max(thread.wakes_at, thread.process.suspended_until)

    def _let_run(self, thread: SimulatedThread) -> None:
        self.steps += 1
        before, self._running = self._running, thread
        thread.go_on()
        self._running = before
        if thread.error is not None:
            error, thread.error = thread.error, None
            raise error

    def _is_inside(self) -> bool:
        return self._running is not None and threading.current_thread() is self._running.thread
