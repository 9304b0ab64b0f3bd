"""Worker processes that run the tasks of a stage, and the frames that they exchange.

Messages between a run and its workers: a length, then that many bytes of JSON.
"""

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
from headrace.plan.loader import plan_of
from headrace.run.messages import KeyedTask, SourceTask, TaskReport, TransitFile, encode_report
from headrace.run.tasks import checked

_LENGTH: Final = 4
"""Number of bytes of a frame's length, big-endian."""


class SourceWork(msgspec.Struct, frozen=True, tag="source"):
    """One task of a source's stage; `task` is a `SourceTask`."""

    stage: str
    number: int
    task: msgspec.Raw


class KeyedWork(msgspec.Struct, frozen=True, tag="keyed"):
    """One task of a keyed stage; `task` is a `KeyedTask`, `transit` has the files that the stage reads."""

    stage: str
    number: int
    task: msgspec.Raw
    transit: tuple[TransitFile, ...]


Work = SourceWork | KeyedWork

encode_work = msgspec.json.encode
decode_work = msgspec.json.Decoder(SourceWork | KeyedWork).decode
encode_reply = msgspec.json.encode
decode_reply = msgspec.json.Decoder(TaskReport).decode


def write_frame(stream: BinaryIO, content: bytes) -> None:
    """Write a message. Raises `OSError` when the other side is gone."""
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next message; None when the other side is gone."""
    header = stream.read(_LENGTH)
    size = int.from_bytes(header, "big")
    content = stream.read(size)
    return content if len(header) == _LENGTH and len(content) == size else None


_TRIES: Final = 4
"""Number of tries of a task whose process dies, as in Spark."""


class Workers:
    """Implements `StageTasks`. Processes start when needed, serve all stages, and end with `close`."""

    def __init__(self, processes: int) -> None:
        """Start nothing yet. At most `processes` processes run at once."""
        self._processes = processes
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Work] = {}

    def start(self) -> None:
        """Do nothing: the first tasks start the processes."""

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks of sources in worker processes."""
        works = [SourceWork(task.source, at, msgspec.Raw(encode_report(task))) for at, task in enumerate(tasks)]
        return self._run(works)

    def keyed(self, task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run a keyed stage in worker processes."""
        payload, stage = msgspec.Raw(encode_report(task)), plan_of(task.batch.code).keyed[task.stage].name
        return self._run([KeyedWork(stage, at, payload, tuple(transit)) for at in range(task.batch.parallelism)])

    def close(self) -> None:
        """End all processes, also busy ones."""
        for worker in (*self._idle, *self._busy):
            worker.end()
        self._idle.clear()
        self._busy.clear()

    def _run(self, works: Sequence[Work]) -> list[TaskReport]:
        """Run all tasks; return their reports. Raises `ClusterError` when the processes of a task die too often."""
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
    """Raise `ClusterError` if a task, whose process has ended with `code`, has no tries left."""
    if deaths >= _TRIES:
        msg = (
            f"worker processes of the local runner died {deaths} times in the tasks of '{stage}', the last one with exit code "
            f"{code}. Most often memory ran out. What was committed stays: run again. If it happens again, give the job less work at "
            "once (sources.*.max_files_per_batch, parallelism), or run it on Spark (--runner spark)."
        )
        raise ClusterError(msg)


def child_environment(hash_seed: str) -> dict[str, str]:
    """Return the environment of a child process: the module path of this one, and a seed of `hash`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": hash_seed}


@dataclass(frozen=True, eq=False, slots=True)
class _Worker:
    """One worker process."""

    process: subprocess.Popen[bytes]

    @classmethod
    def started(cls) -> _Worker:
        """Start a process with the same module path as this one."""
        environment = child_environment("0")  # as in Spark: hash() is the same in all tasks
        line = [sys.executable, "-c", "from headrace.local.worker import main; main()"]
        return cls(subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    @property
    def answers(self) -> BinaryIO:
        """Return the stream of the process's reports."""
        return cast("BinaryIO", self.process.stdout)

    def give(self, work: Work) -> None:
        """Send work to the process. If it has died, `report` notices."""
        try:
            write_frame(cast("BinaryIO", self.process.stdin), encode_work(work))
        except OSError:
            self.process.kill()

    def report(self) -> TaskReport | None:
        """Wait for the report on the last work; None if the process died."""
        frame = read_frame(self.answers)
        return None if frame is None else decode_reply(frame)

    def end(self) -> int:
        """End the process; return its exit code."""
        self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # work that the process did not read
                cast("BinaryIO", stream).close()
        return code
