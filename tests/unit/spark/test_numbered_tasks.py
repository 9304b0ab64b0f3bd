"""Tasks that Spark runs by their numbers, in Python workers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.jobs.home import PROJECT

PROGRAM = """
import sys
from headrace.spark import tasks as numbered_tasks
from headrace.run.messages import TaskReport, decode_report
numbered_tasks.run_source_task = lambda payload, number: TaskReport(task=number, error=payload.decode())
task = numbered_tasks.source_task([b"first", b"second"])
print(*(decode_report(task(number)).error for number in range(2)))
import pyarrow as pa
pa.array([1, None]).to_pylist()
print("pandas" in sys.modules)
"""

IDLE = """
import sys
from headrace.plan.loader import PipelineCode
from headrace.tables.folder import JobFolder
from headrace.spark import tasks as numbered_tasks
from headrace.run.messages import AsyncSettings, BatchSettings, SourceTask, decode_report, encode_report
names = ("attempt_id", "local_folder", "backend")
numbers = ("checkpoint_id", "max_parallelism", "parallelism", "cache_bytes", "inline_reads_below")
code = PipelineCode(sys.argv[1], sys.argv[2])
batch = BatchSettings(code=code, folder=JobFolder(""), versions={}, sinks={}, **dict.fromkeys(names, ""), **dict.fromkeys(numbers, 1))
task = SourceTask(batch=batch, source="", files=[], bucket=1, async_io=AsyncSettings(services={}))
report = decode_report(numbered_tasks.source_task([encode_report(task)])(3))
print(report.task, report.error_class, "headrace.run.keyed_stage" in sys.modules, "tests.jobs.purchases" in sys.modules)
"""

COLLECTING = """
import gc, weakref
from headrace.spark import tasks as numbered_tasks
from headrace.run.messages import TaskReport
class Node: pass
references = []
def task_with_cycle(payload, number):
    node = Node()
    node.itself = node
    references.append(weakref.ref(node))
    return TaskReport(task=number)
numbered_tasks.run_source_task = task_with_cycle
task = numbered_tasks.source_task([b"", b""])
for number in range(2):
    task(number)
    print(references[-1]() is None, len(gc.get_objects()) < 100)
"""


def test_worker_runs_its_numbers_without_pandas():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["first", "second", "False"], "")


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [("tests.jobs.purchases:pipeline", "3 None True True"), ("tests.jobs.absent:pipeline", "3 ConfigError True False")],
)
def test_task_without_files_loads_modules(pipeline, expected):
    words = [sys.executable, "-c", IDLE, pipeline, str(PROJECT)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == (f"{expected}\n", "")


def test_collector_visits_nothing_behind_a_task():
    ran = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["True"] * 4, "")
