"""Tasks that Spark runs by their numbers, in Python workers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from headrace.spark import numbered_tasks
from headrace.spark.reports import TaskReport, decode_report
numbered_tasks.run_source_task = lambda payload, number: TaskReport(task=number, error=payload.decode())
task = numbered_tasks.source_task([b"first", b"second"])
print(*(decode_report(task(number)).error for number in range(2)))
import pyarrow as pa
pa.array([1, None]).to_pylist()
print("pandas" in sys.modules)
"""

COLLECTING = """
import gc, weakref
from headrace.spark import numbered_tasks
from headrace.spark.reports import TaskReport
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


def test_collector_visits_nothing_behind_a_task():
    ran = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["True"] * 4, "")
