"""Order keys: byte strings that sort like the events of a plain loop."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from headrace.execution.process_context import LATEST_TIMER
from headrace.records.order import (
    CAUSE_SIZE,
    before_timers,
    behind_timers,
    caused_at,
    edge_order,
    output_order,
    processing_time_order,
    processing_timer_order,
    record_order,
    timer_order,
)

ordinals = st.integers(1, 2**40)
times = st.integers(-(2**62), 2**62)
keys = st.sampled_from([b'""', b'"a"', b'"ab"', b"1", b"12", b"null"])
paths = st.lists(st.integers(0, 300), max_size=3)


def nested(cause, path):
    for index in path:
        cause = output_order(cause, index)
    return cause


@given(one=ordinals, other=ordinals, path=paths, other_path=paths)
def test_effects_sort_with_their_record(one, other, path, other_path):
    first, second = (one, path), (other, other_path)
    assert (nested(record_order(one), path) < nested(record_order(other), other_path)) is (first < second)


@given(ordinal=ordinals, path=paths, stage=st.integers(0, 5), time=times, key=keys)
def test_timer_sorts_between_records_around_its_watermark(ordinal, path, stage, time, key):
    """A timer sorts after all events before its watermark, and before all events after it."""
    watermark = record_order(ordinal)
    timer = timer_order(watermark, time, key, stage)
    assert nested(record_order(ordinal - 1), path) < timer < nested(watermark, path)
    assert nested(timer, path) < watermark
    assert timer <= nested(timer, path)


fired = st.tuples(st.integers(0, 3), times, keys)


@given(ordinal=ordinals, one=fired, other=fired, path=paths, other_path=paths)
def test_watermark_timers_sort_by_time_stage_key(ordinal, one, other, path, other_path):
    """The order holds for all outputs of the timers."""

    def place(timer, path):
        stage, time, key = timer
        return nested(timer_order(record_order(ordinal), time, key, stage), path)

    def wanted(timer, path):
        stage, time, key = timer
        return time, stage, key, path

    assert (place(one, path) < place(other, other_path)) is (wanted(one, path) < wanted(other, other_path))


timestamps = st.integers(-LATEST_TIMER, LATEST_TIMER)


@given(
    ordinal=ordinals,
    path=paths,
    stage=st.integers(0, 250),
    time=timestamps,
    key=keys,
    edge=st.none() | st.integers(0, 250),
)
def test_effects_of_a_timer_know_its_time(ordinal, path, stage, time, key, edge):
    place = nested(timer_order(record_order(ordinal), time, key, stage), path)
    place = place if edge is None else edge_order(place, edge)
    assert caused_at(place) == caused_at(place[:CAUSE_SIZE]) == time
    assert before_timers(record_order(ordinal)) < place < behind_timers(record_order(ordinal), time)
    assert behind_timers(record_order(ordinal), time - 1) < place


@given(
    ordinal=ordinals,
    path=paths,
    edge=st.none() | st.integers(0, 250),
    fires=st.tuples(st.integers(0, 250), timestamps, keys),
)
def test_other_places_have_no_timer(ordinal, path, edge, fires):
    """Those of records, of processing-time timers, and of timers of earlier releases, which had the stage first."""
    stage, time, key = fires
    former = record_order(ordinal - 1) + b"\xff" + struct.pack(">BQ", stage, time + (1 << 63)) + key + b"\x00"
    if stage < 0x7F:
        assert former < timer_order(record_order(ordinal), -LATEST_TIMER, b"")
    for cause in (record_order(ordinal), tick(ordinal, 1, stage, time, key), former):
        place = nested(cause, path)
        assert caused_at(place if edge is None else edge_order(place, edge)) is None


def tick(ordinal, micro_batch, stage, time, key):
    return processing_timer_order(processing_time_order(ordinal, micro_batch), time, key, stage)


@given(ordinal=ordinals, micro_batch=ordinals, one=fired, other=fired, path=paths, other_path=paths)
def test_processing_timers_sort_between_micro_batches(ordinal, micro_batch, one, other, path, other_path):
    timer = tick(ordinal, micro_batch, *one)
    assert nested(record_order(ordinal - 1), path) < timer
    event_stage, event_time, event_key = other
    assert nested(timer_order(record_order(ordinal), event_time, event_key, event_stage), path) < timer
    assert nested(timer, path) < nested(tick(ordinal, micro_batch + 1, *other), other_path) < record_order(ordinal)


@given(ordinal=ordinals, one=fired, other=fired, path=paths, other_path=paths)
def test_processing_timers_sort_by_reversed_stage_time_key(ordinal, one, other, path, other_path):
    """Stages sort from the last to the first."""
    places = [nested(tick(ordinal, 1, *timer), path) for timer, path in ((one, path), (other, other_path))]
    wanted = [(-timer[0], *timer[1:], path) for timer, path in ((one, path), (other, other_path))]
    assert (places[0] < places[1]) is (wanted[0] < wanted[1])


@given(ordinal=ordinals, stage=st.integers(0, 5), time=times, key=keys)
def test_own_processing_timers_precede_upstream_ones(ordinal, stage, time, key):
    """An operator's own timers of processing time come before those that upstream ones caused."""
    assert processing_time_order(ordinal, 1) < tick(ordinal, 1, stage + 1, time, key) < tick(ordinal, 1, stage, 0, b"")


def test_table_in_the_documentation_is_in_order():
    third = output_order(record_order(7), 2)
    table = [
        record_order(7),
        third,
        output_order(third, 0),
        timer_order(record_order(8), 100, b'"k"'),
        output_order(timer_order(record_order(8), 100, b'"k"'), 0),
        timer_order(record_order(8), 100, b'"k"', stage=1),
        behind_timers(record_order(8), 100),
        timer_order(record_order(8), 5_000, b'"k"'),
        behind_timers(record_order(8), 5_000),
        tick(8, 3, 1, 100, b'"k"'),
        tick(8, 3, 0, 5, b'"k"'),
        output_order(tick(8, 3, 0, 5, b'"k"'), 0),
        record_order(8),
    ]
    assert table == sorted(table)
    assert len(set(table)) == len(table)
