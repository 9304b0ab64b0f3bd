"""Worker process: runs tasks for a run without Spark, until the run closes the worker's standard input or dies.

`headrace.local.workers` starts it. It reads work from standard input, and writes reports to standard output. User code prints to
standard error, as in Spark's Python workers.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from queue import SimpleQueue
from typing import BinaryIO

from headrace import logs
from headrace.errors import EngineBug, HeadraceError
from headrace.local.workers import KeyedWork, Work, decode_work, encode_reply, read_frame, write_frame
from headrace.run.messages import TaskReport
from headrace.run.tasks import of_task, run_keyed_task, run_source_task, without_collector
from headrace.storage.pandas import without_pandas
from headrace.storage.refusals import doing


def main() -> None:
    """Run tasks one after the other. Ends the process as soon as the run is gone."""
    requests, answers = _own_streams()
    without_pandas()
    logs.set_up_worker()
    # A signal to the whole group of processes is meant for the run, which then ends its workers in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    received: SimpleQueue[bytes] = SimpleQueue()

    def receive() -> None:
        while (frame := read_frame(requests)) is not None:
            received.put(frame)
        os._exit(0)  # ending at any time is safe: only the run commits, and it is gone

    threading.Thread(target=receive, daemon=True, name="headrace-requests").start()
    while True:
        write_frame(answers, encode_reply(answered(decode_work(received.get()))))


def answered(work: Work) -> TaskReport:
    """Run one task; return its report, which includes an error of the task."""
    try:
        with without_collector(), doing(f"tasks of '{work.stage}'"):
            return _run(work)
    except HeadraceError as error:
        return _failed(work, error)
    except Exception:  # noqa: BLE001 - the run raises it
        return _failed(work, EngineBug(f"a task of '{work.stage}' failed:\n{traceback.format_exc()}"))
    except BaseException as error:  # noqa: BLE001 - it must not end this process
        return _failed(work, of_task(error))


def _run(work: Work) -> TaskReport:
    if isinstance(work, KeyedWork):
        return run_keyed_task(bytes(work.task), work.number, work.transit)
    return run_source_task(bytes(work.task), work.number)


def _failed(work: Work, error: HeadraceError) -> TaskReport:
    return TaskReport(task=work.number, error=str(error), error_class=type(error).__name__)


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve standard input and output for this module: user code reads nothing, and prints to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers
