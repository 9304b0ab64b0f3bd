"""Runs the tasks of a stage in processes of their own, as many at once as there are cores."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

import msgspec

from headrace.errors import ClusterError
from headrace.local.frames import KeyedWork, SourceWork, Work, decode_answer, encode_work, read_frame, write_frame
from headrace.plan.pipelines import plan_of
from headrace.spark.reports import KeyedTask, SourceTask, TaskReport, encode_report
from headrace.spark.stage_tasks import checked
from headrace.spark.transit import Takes

_TRIES: Final = 4
"""How often a task is tried whose process dies; as in Spark."""


class Workers:
    """Implements `StageTasks`. Processes start when they are needed, serve all stages, and end with `close`."""

    def __init__(self, processes: int) -> None:
        """Nothing is started yet; at most so many `processes` run at once."""
        self._processes = processes
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Work] = {}

    def start(self) -> None:
        """See `StageTasks.start`: the first tasks start the processes."""

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """See `StageTasks.sources`."""
        works = [SourceWork(task.source, at, msgspec.Raw(encode_report(task))) for at, task in enumerate(tasks)]
        return self._run(works)

    def keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:  # noqa: ARG002 - workers know them
        """See `StageTasks.keyed`."""
        payload, stage = msgspec.Raw(encode_report(task)), plan_of(task.batch.code).keyed[task.stage].name
        return self._run([KeyedWork(stage, at, payload, tuple(transit)) for at in range(task.batch.parallelism)])

    def close(self) -> None:
        """End all processes, also those that work."""
        for worker in (*self._idle, *self._busy):
            worker.end()
        self._idle.clear()
        self._busy.clear()

    def _run(self, works: Sequence[Work]) -> list[TaskReport]:
        """Run all works; return their reports. Raises `ClusterError` when the processes of one of them die again and again."""
        waiting, reports, deaths = deque(works), list[TaskReport](), Counter[int]()
        with selectors.DefaultSelector() as answers:
            while len(reports) < len(works):
                while waiting and len(self._busy) < self._processes:
                    worker = self._given(waiting.popleft())
                    answers.register(worker.answers, selectors.EVENT_READ, worker)
                for ready, _ in answers.select():
                    worker = cast("_Worker", ready.data)
                    answers.unregister(worker.answers)
                    work, report = self._busy.pop(worker), worker.report()
                    if report is None:
                        deaths[work.number] += 1
                        _check_deaths(worker.end(), deaths[work.number], work.stage)
                        waiting.appendleft(work)
                    else:
                        self._idle.append(worker)
                        reports.append(report)
        return checked(reports, len(works))

    def _given(self, work: Work) -> _Worker:
        worker = self._idle.pop() if self._idle else _Worker.started()
        self._busy[worker] = work
        worker.give(work)
        return worker


def _check_deaths(code: int, deaths: int, stage: str) -> None:
    """Raise `ClusterError` unless the task whose process has ended with `code` is to be tried again."""
    if deaths >= _TRIES:
        msg = (
            f"worker processes of the local runner died {deaths} times in the tasks of '{stage}', the last one with exit code "
            f"{code}. Most often memory ran out. What was committed stays: run again. If it comes again, give the job less work at "
            "once (sources.*.max_files_per_batch, parallelism), or run it on Spark (--runner spark)."
        )
        raise ClusterError(msg)


@dataclass(frozen=True, eq=False, slots=True)
class _Worker:
    """One process."""

    process: subprocess.Popen[bytes]

    @classmethod
    def started(cls) -> _Worker:
        """Start a process that finds the modules that this one finds."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        line = [sys.executable, "-c", "from headrace.local.worker import main; main()"]
        return cls(subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    @property
    def answers(self) -> BinaryIO:
        """The stream of its reports."""
        return cast("BinaryIO", self.process.stdout)

    def give(self, work: Work) -> None:
        """Let it begin with some work. A process that has died meanwhile is found out where its report is read."""
        try:
            write_frame(cast("BinaryIO", self.process.stdin), encode_work(work))
        except OSError:
            self.process.kill()

    def report(self) -> TaskReport | None:
        """Wait for the report on the work that it was given; None if it died."""
        frame = read_frame(self.answers)
        return None if frame is None else decode_answer(frame)

    def end(self) -> int:
        """End the process; return its exit code."""
        self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what it was given and did not read
                cast("BinaryIO", stream).close()
        return code
