"""World of a test: one clock, one set of threads and one storage in memory, for operators, jobs and job folders."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import msgspec

from headrace import clock, threads
from headrace.api.functions import AsyncFunction, KeyedBroadcastFunction, KeyedCoProcessFunction, KeyedProcessFunction
from headrace.stream.stream import Pipeline
from headrace.testing._async_wait import AsyncWaitHarness
from headrace.testing._clocks import WorldClock
from headrace.testing._keyed import KeyedHarness
from headrace.testing._materializer import MaterializerHarness
from headrace.testing._pipeline import PipelineHarness
from headrace.testing._world_threads import WorldThreads

if TYPE_CHECKING:
    from headrace.testing._memory_disk import MemoryDisk
    from headrace.testing._written_folder import WrittenFolder

R = TypeVar("R", bound=msgspec.Struct)

_numbers = itertools.count(1)


class World:
    """One virtual clock, one set of threads, and one storage in memory, for everything that a test drives.

        with World() as world:
            job = world.job(pipeline)
            job.feed("orders", [Order("a", 1), Order("b", 2)])
            job.run()
            assert job.sink("totals") == [Total("a", 1), Total("b", 2)]

    In the block, this process has the world's clock and threads, so also commands that the test calls by itself. Nothing waits in
    real time, and nothing happens beside the test: parallel work is done piece by piece, in an order that `seed` draws, as all
    random numbers. So a test with the same seed takes the same course.

    The clock starts at `now` (ms). Without it, it starts on 1 January 2020, and runs of jobs advance it to the first event times of
    what they were fed, if that is later.
    """

    def __init__(self, seed: int = 0, *, now: int | None = None) -> None:
        """Make an empty world. It begins with the block."""
        self.clock = WorldClock(now, seed)
        """Time of the world: `world.clock.advance(ms)` advances its operators; the next run of a job sees the new time."""
        self.threads = WorldThreads()
        """Threads of the world: `world.threads.beat()` does once what the engine repeats, such as the renewal of a lease."""
        self.storage = f"memory://world-{next(_numbers)}"
        """Place of all that the world stores."""
        self._open: list[KeyedHarness[Any] | AsyncWaitHarness[Any] | MaterializerHarness[Any]] = []
        weakref.finalize(self.clock, _forget, self.storage)  # each job has the clock, and may outlive this object

    @property
    def disk(self) -> MemoryDisk:
        """Return the disk of the storage: within `world.disk.failing(fault)` its steps call `fault`; `lose_power()` loses unsynced writes."""
        from headrace.testing._memory_disk import disk_and_path

        return disk_and_path(self.storage)[0]

    @overload
    def operator(self, function: AsyncFunction[R, Any], **options: Any) -> AsyncWaitHarness[R]: ...

    @overload
    def operator(self, function: type[R], **options: Any) -> MaterializerHarness[R]: ...

    @overload
    def operator(
        self,
        function: KeyedProcessFunction[R, Any]
        | KeyedCoProcessFunction[R, Any, Any]
        | KeyedBroadcastFunction[R, Any, Any],
        **options: Any,
    ) -> KeyedHarness[R]: ...

    def operator(self, function: Any, *, snapshot: Any = None, **options: Any) -> Any:
        """Return a harness that drives one operator, at the world's time.

        A keyed function gets a `KeyedHarness`, an async function an `AsyncWaitHarness`, and a type of records a
        `MaterializerHarness`; `options` are theirs. With a `snapshot` of such a harness, it continues from there. The end of the
        world closes it. Raises the errors of the harness, and `TypeError` for anything else.
        """
        kind = _harness_of(function)
        harness = (
            kind(function, now=self.clock.now(), **options)
            if snapshot is None
            else kind.restore(snapshot, function, **options)
        )
        self._open.append(harness)
        self.clock.lead(harness.clock)
        return harness

    def job(self, pipeline: Pipeline, **options: Any) -> PipelineHarness:
        """Return a job that runs a pipeline, on the world's clock, with its state and sinks in the world's storage.

        `options` are those of `PipelineHarness`, such as `backend`, `parallelism` and `job`; `storage=None` writes real Delta
        tables. Two jobs of one name share nothing but the clock. Raises the errors of `PipelineHarness`.
        """
        place = f"{self.storage}/job-{next(_numbers)}"
        return PipelineHarness(pipeline, **{"storage": place, "now": self.clock, **options})

    def folder(
        self,
        *,
        rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        facts: Mapping[str, Any] | None = None,
        at: str | None = None,
    ) -> WrittenFolder:
        """Return a job folder without a run: it has an initial checkpoint, and one with these rows and facts.

        `rows` are by state table, such as "keyed_state" and "timers"; `facts` are fields of the checkpoint, such as `watermark`. Without
        both, the folder has the initial checkpoint alone. `commit(rows=..., **facts)` of the folder adds more. It is in the world's
        storage, unless `at` names an empty place for Delta tables.
        """
        from headrace.config import allow_scheme
        from headrace.tables.folder import JobFolder
        from headrace.testing._memory_table import open_memory
        from headrace.testing._written_folder import WrittenFolder

        allow_scheme(open_memory())
        folder = WrittenFolder(JobFolder(at or f"{self.storage}/folder-{next(_numbers)}"), clock=self.clock)
        if rows is not None or facts is not None:
            folder.commit(rows=rows, **(facts or {}))
        return folder

    def close(self) -> None:
        """Close the harnesses of operators, the last one first."""
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> Self:
        """Give this process the world's clock and threads, and return the world."""
        self._clock_before, self._threads_before = clock.use(self.clock), threads.use(self.threads)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the operators, and put the former clock and threads back."""
        try:
            self.close()
        finally:
            clock.use(self._clock_before)
            threads.use(self._threads_before)


def _harness_of(function: Any) -> Any:
    """Return the class of the harness that drives an operator."""
    if isinstance(function, AsyncFunction):
        return AsyncWaitHarness
    if isinstance(function, type) and issubclass(function, msgspec.Struct):
        return MaterializerHarness
    return KeyedHarness


def _forget(storage: str) -> None:
    from headrace.testing._memory_disk import SCHEME, forget_disk

    forget_disk(storage.removeprefix(f"{SCHEME}://"))
