"""Idle tasks of the first job of sources."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.run.messages import TaskReport, encode_report
from headrace.spark import tasks as spark_tasks
from headrace.spark.tasks import SparkTasks

CORES = 4


class FakeContext:
    """A Spark context that counts the tasks of each job, and reports their numbers."""

    defaultParallelism = CORES  # noqa: N815  the name in pyspark

    def __init__(self, **settings: str) -> None:
        self.jobs: list[int] = []
        self._settings = settings

    def getConf(self):
        return SimpleNamespace(get=lambda key, default: self._settings.get(key.replace(".", "_"), default))

    def parallelize(self, numbers, _):
        self.jobs.append(len(numbers))
        reports = [encode_report(TaskReport(task=number)) for number in numbers]
        return SimpleNamespace(map=lambda _: SimpleNamespace(collect=lambda: reports))


def source_tasks(count: int, parallelism: int) -> list:
    return [SimpleNamespace(source="s", batch=SimpleNamespace(parallelism=parallelism, code=None))] * count


@pytest.fixture(autouse=True)
def plan(monkeypatch) -> SimpleNamespace:
    result = SimpleNamespace(keyed=["count"])
    monkeypatch.setattr(spark_tasks, "plan_of", lambda _: result)
    monkeypatch.setattr(spark_tasks, "encode_report", lambda _: b"", raising=True)
    return result


@pytest.mark.parametrize(
    ("files", "parallelism", "expected"),
    [(1, 3, 3), (3, 2, 3), (1, 200, CORES), (2, 2, 2)],
)
def test_first_job_has_a_task_for_each_worker(files, parallelism, expected):
    context = FakeContext()
    tasks = SparkTasks(context)
    for _ in range(2):
        reports = tasks.sources(source_tasks(files, parallelism))
        assert [report.task for report in reports] == [*range(files)]
    assert context.jobs == [expected, files]


def test_no_idle_tasks_without_keyed_stages(plan):
    plan.keyed = []
    context = FakeContext()
    SparkTasks(context).sources(source_tasks(1, 3))
    assert context.jobs == [1]


def test_no_idle_tasks_beside_speculation():
    """Spark takes the task of a source for a straggler among idle ones, and runs it twice."""
    context = FakeContext(spark_speculation="true")
    SparkTasks(context).sources(source_tasks(1, 3))
    assert context.jobs == [1]


def test_job_without_tasks_does_not_start():
    context = FakeContext()
    assert SparkTasks(context).sources([]) == []
    assert context.jobs == []
