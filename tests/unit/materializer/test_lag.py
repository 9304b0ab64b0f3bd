"""Lag against a plain list: after additions, retractions and replacements, each row of the table is paired with its predecessor."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    ExpiryClock,
    LagNode,
    OnGap,
    Pipeline,
    RowKind,
    StateTtl,
    Strategy,
    Struct,
    Timestamp,
    TtlTime,
    UpdateType,
    Visibility,
)
from headrace.errors import UserFunctionError
from headrace.execution.element import Element, Watermark
from headrace.materializer.lag import Lagging
from headrace.options import Layouts
from headrace.plan.planner import plan_stages
from headrace.records.order import record_order
from headrace.state.codec import encode
from tests.jobs.lag_by_hand import LagByHand

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
TTL = 10
MILLISECOND = timedelta(milliseconds=1)


class Reading(Struct, frozen=True):
    sensor: str
    number: int
    level: int
    at: Timestamp = 0


class Step(Struct, frozen=True):
    number: int
    level: int
    rise: int | None


def step(reading, before):
    return Step(reading.number, reading.level, None if before is None else reading.level - before.level)


def lag(offset=1, function=step, ttl=None):
    pipeline = Pipeline("steps").source("readings", Reading, event_time="at")
    return pipeline.lag(
        "steps",
        function,
        record=Step,
        partition_by=("sensor",),
        primary_key=("number",),
        upsert_key=("number",),
        offset=offset,
        ttl=ttl,
    )


class Table:
    """A sink, and the operator before it; each `run` is a micro-batch of changes and watermarks."""

    def __init__(self, backend, operator, strategies):
        self.backend, self.operator, self.strategies = backend, operator, strategies
        self.rows, self.ordinal, self.unmatched, self.watermark = {}, 0, 0, None

    def run(self, steps, micro_batch=0, now=0):
        elements, watermarks = [], []
        for step in steps:
            if isinstance(step, int):
                watermarks.append(Watermark(record_order(self.ordinal), step))
                continue
            kind, row = step
            elements.append(Element(record_order(self.ordinal), row.at, kind, encode(row.sensor), row))
            self.ordinal += 1
        task = Lagging(
            self.operator,
            self.backend,
            record=Reading,
            layouts=Layouts(self.strategies[micro_batch % len(self.strategies)], high=3, low=1),
            watermark=self.watermark,
            watermarks=watermarks,
            processing_time=now,
        )
        task.run([elements])
        self.watermark = watermarks[-1].timestamp if watermarks else self.watermark
        timers = task.timer_changes()
        self.backend.write_batch(task.writes())
        self.backend.write_batch(task.timer_writes(timers))
        self.last = task
        self.unmatched += len(task.unmatched)
        outputs = task.outputs()
        assert [out.order for out in outputs] == sorted({out.order for out in outputs})
        for _, kind, key, raw in outputs:
            if kind is DELETE:
                self.rows.pop(key, None)
            else:
                self.rows[key] = msgspec.json.decode(raw, type=Step)
        return outputs


changes = st.lists(st.tuples(st.sampled_from(RowKind), st.integers(0, 5), st.integers(0, 9)), max_size=30)


@given(
    changes=changes,
    size=st.integers(1, 7),
    offset=st.integers(1, 3),
    strategies=st.lists(st.sampled_from(Strategy), min_size=1, max_size=3),
)
def test_each_row_is_paired_with_its_predecessor(backends, changes, size, offset, strategies):
    rows, unmatched = [], 0
    with backends.lent() as new:
        table = Table(new(), lag(offset).operators[-1], strategies)
        for number in range(0, len(changes), size):
            part = [(kind, Reading("s", place, level)) for kind, place, level in changes[number : number + size]]
            table.run(part, number)
            for kind, row in part:
                place = next((at for at, reading in enumerate(rows) if reading.number == row.number), None)
                if kind.is_retraction:
                    unmatched += place is None
                    rows = [reading for reading in rows if reading.number != row.number]
                elif place is None:
                    rows.append(row)
                else:
                    rows[place] = row
            expected = [step(row, rows[at - offset] if at >= offset else None) for at, row in enumerate(rows)]
            assert sorted(table.rows.values(), key=lambda item: item.number) == sorted(
                expected, key=lambda element: element.number
            )
        assert table.unmatched == unmatched


steps = st.lists(
    st.tuples(st.sampled_from(RowKind), st.sampled_from("st"), st.integers(0, 5), st.integers(-8, 4))
    | st.sampled_from(["watermark", "watermark", "end"]),
    max_size=40,
)
layouts = st.just([Strategy.LEGACY]) | st.lists(
    st.sampled_from([strategy for strategy in Strategy if strategy is not Strategy.LEGACY]), min_size=1, max_size=3
)


@pytest.mark.parametrize("time", TtlTime)
@given(steps=steps, offset=st.integers(1, 3), strategies=layouts)
def test_expired_rows_are_no_predecessors(backends, time, steps, offset, strategies):
    model = LagByHand(offset, TTL, legacy=strategies == [Strategy.LEGACY])
    by_event = time is TtlTime.EVENT
    with backends.lent() as new:
        table = Table(new(), lag(offset, ttl=StateTtl(TTL * MILLISECOND, time=time)).operators[-1], strategies)
        taken, furthest, mark, batch = [], 0, None, 0
        for place, step in enumerate([*steps, "end"]):
            now = 3 * batch
            if step == "watermark":
                mark = furthest if mark is None else max(mark + 1, furthest)
                taken.append(mark)
            elif step == "end":
                table.run(taken, batch, now)
                model.end(mark if by_event else now)
                assert_same(table, model)
                taken, batch = [], batch + 1
            else:
                kind, sensor, number, late = step
                number += 10 * (sensor == "t")  # a primary key tells all rows apart
                at = furthest + late
                furthest = max(furthest, at)
                row = Reading(sensor, number, place, at)
                taken.append((kind, row))
                clock = mark if by_event else now
                model.take(sensor, number, row, retracts=kind.is_retraction, at=at if by_event else now, clock=clock)


def assert_same(table, model):
    """Check that the sink, the stored rows and the unmatched retractions equal the model."""
    expected = {encode(name): pair for (_, name), pair in model.table.items()}
    assert table.rows == {key: step(*pair) for key, pair in expected.items()}
    for sensor, rows in model.partitions.items():
        assert table.last.rows_of(encode(sensor)) == [encode(row) for _, row, _ in rows]
    assert table.unmatched == model.unmatched


def test_derived_values_outlive_the_expired_row(backend):
    """A value derived from a row stays when the row expires."""
    table = Table(backend, lag(ttl=StateTtl(TTL * MILLISECOND)).operators[-1], [Strategy.MAP])
    table.run([(INSERT, Reading("s", 1, 10, at=0)), (INSERT, Reading("s", 2, 15, at=5)), 10])
    assert table.rows == {b"1": Step(1, 10, None), b"2": Step(2, 15, 5)}
    table.run([(DELETE, Reading("s", 1, 10, at=0))])
    assert (table.rows[b"1"], table.unmatched) == (Step(1, 10, None), 1)
    table.run([(UPDATE_AFTER, Reading("s", 2, 16, at=11)), (INSERT, Reading("s", 3, 19, at=12))])
    assert table.rows == {b"1": Step(1, 10, None), b"2": Step(2, 16, None), b"3": Step(3, 19, 3)}


@pytest.mark.parametrize(
    ("ttl", "message"),
    [
        (StateTtl(MILLISECOND, update=UpdateType.ON_READ_AND_WRITE), "must be ON_CREATE_AND_WRITE"),
        (StateTtl(MILLISECOND, visibility=Visibility.RETURN_IF_NOT_CLEANED_UP), "must be NEVER_RETURN_EXPIRED"),
        (StateTtl(MILLISECOND, expiry=ExpiryClock.PROCESSING_TIME), "`expiry` must be WATERMARK"),
        (StateTtl(MILLISECOND, on_gap=OnGap.PROLONG, gap_threshold=MILLISECOND), "`on_gap` must be EXPIRE"),
    ],
)
def test_ttl_impossible_for_history_rows_is_refused(ttl, message):
    with pytest.raises(ValueError, match=f"ttl of 'steps': .*{message}"):
        lag(ttl=ttl)


def test_only_rows_of_a_change_are_reported(backend):
    table = Table(backend, lag().operators[-1], [Strategy.MAP])
    table.run([(INSERT, Reading("s", number, number)) for number in range(100)])
    output = table.run([(DELETE, Reading("s", 50, 0))])
    assert [(out.kind, msgspec.json.decode(out.raw)) for out in output] == [
        (DELETE, {"number": 50, "level": 50, "rise": 1}),
        (UPDATE_AFTER, {"number": 51, "level": 51, "rise": 2}),
    ]


def test_failing_function_is_reported_with_its_row(backend):
    table = Table(backend, lag(function=lambda reading, _: 1 // reading.level).operators[-1], [Strategy.VALUE])
    with pytest.raises(
        UserFunctionError, match=r'operator \'steps\', key "s", record .*"level":0[^$]*ZeroDivisionError'
    ):
        table.run([(INSERT, Reading("s", 1, 0))])


def test_plan_keys_by_partition_merges_by_primary_key():
    plan = plan_stages(lag().sink("steps_of_sensors"))
    (stage,) = plan.keyed
    assert isinstance(stage.operator, LagNode)
    assert (stage.keys[0].fields, stage.takes, stage.record) == (("sensor",), (Reading,), Step)
    assert plan.sinks["steps_of_sensors"].primary_key == ("number",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offset": 0}, "an offset of at least 1, not 0"),
        ({"primary_key": ("sensor",)}, "Step has no field 'sensor'"),
        ({"partition_by": ("rise",)}, "Reading has no field 'rise'"),
    ],
)
def test_invalid_lag_is_refused(arguments, message):
    source = Pipeline("steps").source("readings", Reading, event_time="at")
    whole = {"record": Step, "partition_by": ("sensor",), "primary_key": ("number",), **arguments}
    with pytest.raises(ValueError, match=message):
        source.lag("steps", step, **whole)
