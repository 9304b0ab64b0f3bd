"""The register of metrics: tasks count its names only, and all of them."""

from __future__ import annotations

import re
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.async_io.metrics import ServiceMetrics, merged_metrics
from headrace.errors import EngineBug
from headrace.metrics import METRICS, Metric, Total, Unit
from headrace.run.messages import TaskReport
from headrace.run.output import TaskOutput
from tests.house import PACKAGE, texts

NO_COUNTS = {"p50_ms", "p95_ms", "p99_ms", "breaker", "latencies"}
PARTS = st.none() | st.integers(0, 10**6)


def test_names_are_unique_and_explained():
    assert all(name == metric.name and metric.help.endswith(".") for name, metric in METRICS.items())


@pytest.mark.slow
def test_each_metric_is_counted_somewhere():
    code = "\n".join(text for file, text in texts(PACKAGE) if file.name != "metrics.py" or file.parent != PACKAGE)
    assert [name for name in METRICS if not re.search(rf"\b{name}\b", code)] == []


def test_metrics_of_services_are_registered():
    fields = {field.name for field in msgspec.structs.fields(ServiceMetrics)}
    assert fields - NO_COUNTS <= METRICS.keys()


def test_unregistered_name_is_a_bug():
    output = SimpleNamespace(report=TaskReport())
    with pytest.raises(EngineBug, match="metric 'rows_inn' is not registered"):
        TaskOutput.count(output, rows_inn=1)
    TaskOutput.count(output, rows_in=2)
    TaskOutput.count(output, rows_in=3, held=0)
    assert output.report.metrics == {"rows_in": 5}


@given(PARTS, st.integers(0, 10**6), st.sampled_from(Total))
def test_totals_are_sums_or_maxima(before, value, total):
    values = [value] if before is None else [before, value]
    expected = sum(values) if total is Total.SUM else max(values)
    assert Metric("m", Unit.ROWS, "", total).together(before, value) == expected


@given(st.lists(st.builds(ServiceMetrics, calls=st.integers(0, 9), busy_ms=st.integers(0, 9), open_until=PARTS)))
def test_services_of_all_tasks_become_one(tasks):
    merged = merged_metrics({"ask": task} for task in tasks)
    if not tasks:
        assert merged == {}
        return
    total = merged["ask"]
    assert (total.tasks, total.calls) == (len(tasks), sum(task.calls for task in tasks))
    assert total.busy_ms == max(task.busy_ms for task in tasks)
    assert total.open_until == max((task.open_until for task in tasks if task.open_until is not None), default=None)
