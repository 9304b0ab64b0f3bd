"""Errors of tasks name the job in the commands that they print."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import AsyncFunction, FixedDelay, Pipeline, Struct, Timestamp
from headrace.errors import ServiceError
from headrace.testing import PipelineHarness


class Row(Struct, frozen=True):
    id: str
    at: Timestamp


class Down(AsyncFunction[Row, Row]):
    async def invoke(self, record, result=None, /):
        raise ConnectionError


def test_failed_call_names_the_job():
    pipeline = Pipeline("calls")
    rows = pipeline.source("rows", Row, event_time="at")
    retry = FixedDelay(max_retries=0, delay=timedelta(0))
    rows.async_wait("ask", Down(), timeout=timedelta(seconds=60), capacity=1, retry=retry).sink("asked")
    harness = PipelineHarness(pipeline)
    harness.feed("rows", [Row("a", 1)])
    with pytest.raises(ServiceError, match="'headrace quarantine calls --requeue' brings it back"):
        harness.run()
