"""Traces and metrics of real runs, as a real collector gets them."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from headrace.config import load_job
from headrace.log.log import CheckpointLog
from headrace.metrics import METRICS
from headrace.tables.folder import JobFolder
from headrace.telemetry import exporter
from headrace.telemetry.instruments import INSTRUMENTS
from tests.house import ROOT
from tests.unit.support.demo_job import headrace, home
from tests.unit.telemetry.collector import Collector, collecting, deliver, values_of, write_job

__all__ = ["headrace", "home"]
RUN = "run --runner local --json"
SERVICES = ("retries", "timeouts", "parked", "responses_taken")


@pytest.fixture
def collector(home, monkeypatch):
    """Return a collector that the environment names, beside a job with a service."""
    write_job(home)
    monkeypatch.setattr(exporter, "PATIENCE", 60)  # however busy this machine is
    with collecting(Collector()) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


def checkpoints():
    lineage = CheckpointLog(JobFolder.of(load_job("demo"))).lineage.checkpoints
    return [checkpoint for checkpoint in lineage if checkpoint.metrics]


def attributes(span):
    return {name.removeprefix("headrace."): value for name, value in values_of(span.attributes).items()}


def test_spans_are_nested_from_run_to_call(headrace, collector):
    result = headrace(RUN)
    assert result.exit_code == 0, result.output
    by_id = {span.span_id: span for span in collector.spans}
    parents = {"run": None, "micro-batch": "run", "stage": "micro-batch", "task": "stage", "call": "task"}
    assert {span.name for span in collector.spans} == set(parents)
    for span in collector.spans:
        parent = by_id.get(span.parent_span_id)
        assert parents[span.name] == (parent.name if parent else None)
        if parent is not None:
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    assert len({span.trace_id for span in collector.spans}) == 1


@pytest.mark.slow
def test_spans_have_the_facts_of_the_run(headrace, collector):
    report = json.loads(headrace(f"{RUN} --run-id r1").stdout)
    (run,) = collector.named("run")
    assert attributes(run) == {
        "job": "demo", "run_id": "r1", "mode": "caught_up", "exit": 0, "checkpoint": 2, "rows": 5, "stopped_because": "drained"
    }  # fmt: skip
    batches = [attributes(span) for span in collector.named("micro-batch")]
    expected = [{"checkpoint": own.checkpoint_id, "watermark": own.watermark} for own in checkpoints()]
    assert batches == [{**own, "rows": rows} for own, rows in zip(expected, (2, 3), strict=True)]
    assert report["checkpoints"] == [own["checkpoint"] for own in batches]
    assert [attributes(span)["stage"] for span in collector.named("stage")] == ["sources", "count", "commit"] * 2
    rows = Counter()
    for span in collector.named("task"):
        rows[attributes(span)["operator"]] += attributes(span)["rows"]
    assert rows == {"events": 5, "count": 5}


@pytest.mark.slow
def test_spans_of_calls_have_attempts_and_outcomes(headrace, collector):
    headrace(RUN)
    calls = [attributes(span) for span in collector.named("call")]
    assert Counter((call["attempt"], call["outcome"]) for call in calls) == {
        (1, "answered"): 4, (1, "failed"): 1, (2, "answered"): 1
    }  # fmt: skip
    assert {(call["operator"], call["service"], call["elements"]) for call in calls} == {("ask", "oracle", 1)}
    (failed,) = [span for span in collector.named("call") if span.status.code]
    assert failed.status.message == "OSError: https://...@oracle/ask?... is busy"
    assert attributes(failed)["error.type"] == "OSError"


@pytest.mark.slow
def test_failed_run_marks_its_spans(headrace, home, collector):
    deliver(home, "2013-02-02", "broken")
    assert headrace(RUN).exit_code == 4
    failed = [span for span in collector.spans if span.status.code]
    assert [span.name for span in failed if span.name != "call"] == ["run", "micro-batch", "stage"]
    assert {values_of(span.attributes)["error.type"] for span in failed} == {"ServiceError", "OSError"}
    assert attributes(failed[0])["exit"] == 4
    assert "secret" not in "".join(map(str, collector.requests))


@pytest.mark.slow
def test_metrics_equal_those_of_checkpoints(headrace, collector):
    headrace(RUN)
    done = checkpoints()
    assert len(done) == 2
    got = {name: collector.values(metric) for name, metric in collector.metrics.items()}
    for name in METRICS:
        instrument = INSTRUMENTS[name]
        if instrument.is_of_operator:
            values = [value for own in done if (value := getattr(own.services["ask"], name)) is not None]
            expected = {("demo", "ask", "oracle"): sum(values) if instrument.kind == "counter" else values[-1:]}
            expected = expected if values else None
        else:
            expected = {("demo",): sum(own.metrics.get(name, 0) for own in done)}
        if expected is not None and instrument.kind == "gauge":
            expected = {key: value[0] for key, value in expected.items()}
        assert got.get(instrument.name) == expected, name
    assert got["headrace.rows_in"] == {("demo",): 5}
    assert got["headrace.calls"] == {("demo", "ask", "oracle"): 6}
    assert (got["headrace.waiting"], got["headrace.state"][("demo",)] > 0) == ({("demo",): 0}, True)
    assert INSTRUMENTS["rows_in"].metric.help == collector.metrics["headrace.rows_in"].description


@pytest.mark.slow
def test_environment_names_the_parent_and_resource(headrace, collector, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=data")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
    headrace(RUN)
    (run,) = collector.named("run")
    assert (run.parent_span_id.hex(), run.trace_id.hex()) == ("cd" * 8, "ab" * 16)
    assert {(own["service.name"], own["team"]) for own in collector.resources} == {("orders", "data")}
    assert {headers["x-key"] for headers in collector.headers} == {"abc"}


@pytest.mark.slow
def test_unsampled_parent_exports_no_spans(headrace, collector, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-00")
    headrace(RUN)
    assert collector.spans == []
    assert collector.metrics


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["rubbish", "00-0-0-00", ""])
def test_wrong_parent_counts_as_none(headrace, collector, monkeypatch, parent):
    monkeypatch.setenv("TRACEPARENT", parent)
    headrace(RUN)
    assert collector.named("run")[0].parent_span_id == b""


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "other"), [("TRACES", "metrics"), ("METRICS", "spans")])
def test_each_signal_is_switched_off_alone(headrace, collector, monkeypatch, signal, other):
    monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")
    headrace(RUN)
    assert collector.requests
    assert not (collector.spans if other == "metrics" else collector.metrics)


@pytest.mark.slow
def test_run_of_a_branch_has_its_name(headrace, home, collector):
    headrace(RUN)
    collector.requests.clear()
    assert headrace("branch create demo trial --at 1 --why test").exit_code == 0
    assert headrace(f"{RUN} --branch trial").exit_code == 0
    (run,) = collector.named("run")
    assert (attributes(run)["branch"], attributes(run)["checkpoint"]) == ("trial", 3)
    assert collector.values(collector.metrics["headrace.rows_in"]) == {("demo", "trial"): 3}


@pytest.mark.slow
def test_default_name_of_the_service_is_headrace(headrace, collector):
    headrace(RUN)
    assert {own["service.name"] for own in collector.resources} == {"headrace"}


@pytest.mark.slow
def test_page_names_the_attributes_of_spans(headrace, collector):
    page = (ROOT / "docs" / "metrics.md").read_text()
    block = page.split("## What is in a trace")[1].split("```")[1].replace("(or source)", "")
    lines = re.findall(
        r"^[^a-z\n]*([a-z-]+) +(.+)$", re.sub(r"\([^)]*\)", "", block.removeprefix("text")), re.MULTILINE
    )
    described = {name: set(re.findall(r"\w+", names)) for name, names in lines}
    headrace(f"{RUN} --run-id r1")
    seen = {name: set() for name in described}
    for span in collector.spans:
        seen[span.name] |= set(attributes(span)) - {"error.type"}
    assert {name: names - {"branch", "interval", "calls_left_out"} for name, names in described.items()} == seen
