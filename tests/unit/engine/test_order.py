"""Order keys: byte strings that sort as things happen in a plain loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.execution.element import output_order, record_order, timer_order

ordinals = st.integers(1, 2**40)
times = st.integers(-(2**62), 2**62)
keys = st.sampled_from([b'""', b'"a"', b'"ab"', b"1", b"12", b"null"])
paths = st.lists(st.integers(0, 300), max_size=3)


def nested(cause, path):
    for index in path:
        cause = output_order(cause, index)
    return cause


@given(one=ordinals, other=ordinals, path=paths, other_path=paths)
def test_what_a_record_causes_sorts_with_the_record(one, other, path, other_path):
    first, second = (one, path), (other, other_path)
    assert (nested(record_order(one), path) < nested(record_order(other), other_path)) is (first < second)


@given(ordinal=ordinals, path=paths, stage=st.integers(0, 5), time=times, key=keys)
def test_a_timer_comes_after_all_that_precedes_its_watermark_and_before_all_that_follows(
    ordinal, path, stage, time, key
):
    watermark = record_order(ordinal)
    timer = timer_order(watermark, time, key, stage)
    assert nested(record_order(ordinal - 1), path) < timer < nested(watermark, path)
    assert nested(timer, path) < watermark
    assert timer <= nested(timer, path)


fired = st.tuples(st.integers(0, 3), times, keys)


@given(ordinal=ordinals, one=fired, other=fired, path=paths, other_path=paths)
def test_timers_of_a_watermark_sort_by_stage_then_time_then_key_whatever_they_cause(
    ordinal, one, other, path, other_path
):
    def place(timer, path):
        stage, time, key = timer
        return nested(timer_order(record_order(ordinal), time, key, stage), path)

    assert (place(one, path) < place(other, other_path)) is ((*one, path) < (*other, other_path))


def test_the_table_in_the_documentation_is_in_order():
    third = output_order(record_order(7), 2)
    table = [
        record_order(7),
        third,
        output_order(third, 0),
        timer_order(record_order(8), 5_000, b'"k"'),
        output_order(timer_order(record_order(8), 5_000, b'"k"'), 0),
        timer_order(record_order(8), 100, b'"k"', stage=1),
        record_order(8),
    ]
    assert table == sorted(table)
    assert len(set(table)) == len(table)
