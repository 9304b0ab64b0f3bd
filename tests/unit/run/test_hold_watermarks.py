"""The progress of a micro-batch with a waiting element in an unordered wait: up to the next watermark."""

from __future__ import annotations

import pytest

from headrace.execution.drain import seen_and_held
from headrace.execution.element import Watermark, before_watermark
from headrace.records.order import output_order, record_order
from headrace.run.result import BatchResult

WATERMARKS = [(10, 1000), (20, 2000), (30, 3000)]


def cut(blocks, before=None):
    result = BatchResult(
        blocks={} if blocks is None else {"weather": blocks}, cuts={} if before is None else {"legs": before}
    )
    assert result.cut_behind(["board"], WATERMARKS) is None
    return result.cut_behind(["weather", "legs"], WATERMARKS)


#   records 0..9 | W 10..19 | W 20..29 | W 30..


@pytest.mark.parametrize(("waits", "seen"), [(0, 0), (9, 0), (10, 1), (19, 1), (29, 2)])
def test_event_time_never_passes_waiting_element(waits, seen):
    result = cut(record_order(waits))
    places = [Watermark(record_order(ordinal), time) for ordinal, time in WATERMARKS]
    assert len(seen_and_held(places, result)[0]) == seen


def test_records_of_same_set_pass_later_wait():
    result = cut(output_order(record_order(12), 0))
    assert output_order(record_order(19), 7) < result <= record_order(20)


def test_without_a_watermark_after_it_nothing_is_held():
    assert cut(record_order(30)) is None
    assert cut(None) is None


def test_held_records_stay_held():
    earlier = before_watermark(Watermark(record_order(10), 1000))
    assert cut(record_order(25), earlier) == earlier
    assert cut(record_order(5), record_order(29)) == earlier
