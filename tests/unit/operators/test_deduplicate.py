from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import deduplicate
from headrace.plan.stages import plan_stages
from headrace.testing import KeyedHarness

HOUR = 3_600_000


class Click(Struct, frozen=True):
    user: str
    at: Timestamp
    number: int


@pytest.fixture(params=["hashmap", "rocksdb"])
def harness(request):
    function = deduplicate(Click, ttl=timedelta(hours=1))
    harness = KeyedHarness(function, key=lambda click: click.user, backend=request.param)
    yield harness
    harness.close()


def clicks(harness, *pairs):
    for user, at, number in pairs:
        harness.process(Click(user, at, number), timestamp=at)
    harness.drain()
    return [record.number for record in harness.output() if isinstance(record, Click)]


def test_only_the_first_record_passes(harness):
    assert clicks(harness, ("ann", 0, 1), ("bob", 1, 2), ("ann", 2, 3), ("bob", 3, 4)) == [1, 2]


def test_a_key_is_forgotten_after_its_ttl(harness):
    assert clicks(harness, ("ann", 0, 1)) == [1]
    harness.watermark(HOUR - 1)
    assert clicks(harness, ("ann", HOUR - 1, 2)) == []
    harness.watermark(HOUR)
    assert clicks(harness, ("ann", HOUR, 3), ("ann", HOUR + 1, 4)) == [3]


def test_it_fits_into_a_pipeline():
    pipeline = (
        Pipeline("clicks")
        .source("clicks", Click, event_time="at")
        .key_by("user")
        .process("first", deduplicate(Click, ttl=timedelta(hours=1)))
        .sink("first_clicks")
    )
    assert plan_stages(pipeline).sink_record is Click


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1)])
def test_a_ttl_is_at_least_a_millisecond(ttl):
    with pytest.raises(ValueError, match="at least 1 ms"):
        deduplicate(Click, ttl=ttl)
