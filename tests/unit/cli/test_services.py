"""Services in the output of `status` and `explain`."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest

from headrace.async_io.metrics import ServiceMetrics
from headrace.cli.describe import capacity_for_retries, limits_of
from headrace.config import ServiceConfig
from headrace.log.checkpoint import Kind
from headrace.log.facts import JobWork
from tests.unit.support.demo_job import HOUR, START

MADE = {"elements": 1000, "calls": 1010, "busy_ms": 10_000, "retries": 10, "retry_wait_ms": 600_000}


def test_capacity_estimate_equals_example_of_flip():
    # 100 records/s, 1 % of them tried again after 60 s.
    assert capacity_for_retries(MADE)["capacity"] == 60


@pytest.mark.parametrize("created", [{}, {"elements": 5}, {"busy_ms": 5}])
def test_estimate_without_measurements_is_none(created):
    assert capacity_for_retries(created) is None


def test_estimate_without_retries_adds_no_capacity():
    assert capacity_for_retries({"elements": 10, "busy_ms": 100})["capacity"] == 0


def test_status_shows_service_results_and_waiting_elements(headrace, state):
    result = {**MADE, "p50_ms": 5.0, "p95_ms": 9.5, "p99_ms": 20.0, "breaker": "open", "parked": 7}
    work = JobWork(pending=1234, due=START + 3 * HOUR)
    state.commit(Kind.BATCH, services={"weather": msgspec.convert(result, ServiceMetrics)}, work=work)
    output = headrace("status").stdout
    assert "demo, weather: 1,010 calls, p50/p95/p99 5/9.5/20 ms, 10 retries, 7 parked, breaker open" in output
    assert "1,234 elements wait for services, the next attempt is due at 2013-01-31T03:00:00Z" in output
    (printed,) = json.loads(headrace("status --json").stdout)["jobs"]
    assert (printed["waiting"], printed["services"]["weather"]["breaker"]) == (1234, "open")


def test_status_shows_last_calls_of_services(headrace, state):
    state.commit(Kind.BATCH, services={"weather": ServiceMetrics(calls=7, breaker="open")})
    state.commit(Kind.COMPACTION)
    assert json.loads(headrace("status demo --json").stdout)["jobs"][0]["services"]["weather"]["calls"] == 7
    assert "demo, weather: 7 calls, breaker open" in headrace("status demo").stdout


def test_explain_warns_when_queued_elements_would_time_out():
    service = ServiceConfig(url="http://x", rate=2)
    assert limits_of(service, 60, timedelta(seconds=30)) == {"rate": 2, "concurrency": None}
    assert "a call may wait 30.5 s for its turn" in limits_of(service, 61, timedelta(seconds=30))["beware"]
