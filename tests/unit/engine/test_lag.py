"""Lag against a plain list: whatever comes, goes and is replaced, the table has each row with the one before it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Lag, Pipeline, RowKind, Strategy, Struct, Timestamp
from engine.errors import UserFunctionError
from engine.execution.element import Element, record_order
from engine.materializer import Lagging, Layouts
from engine.plan.stages import plan_stages
from engine.state.codec import encode

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


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


def lag(offset=1, function=step):
    pipeline = Pipeline("steps").source("readings", Reading, event_time="at")
    return pipeline.lag(
        "steps",
        function,
        record=Step,
        partition_by=("sensor",),
        primary_key=("number",),
        upsert_key=("number",),
        offset=offset,
    )


class Table:
    """A sink, and the operator before it; each `run` is a micro-batch."""

    def __init__(self, backend, operator, strategies):
        self.backend, self.operator, self.strategies = backend, operator, strategies
        self.rows, self.ordinal, self.unmatched = {}, 0, 0

    def run(self, changes, micro_batch=0):
        layouts = Layouts(self.strategies[micro_batch % len(self.strategies)], high=3, low=1)
        task = Lagging(self.operator, self.backend, record=Reading, layouts=layouts)
        elements = []
        for kind, row in changes:
            self.ordinal += 1
            elements.append(Element(record_order(self.ordinal), row.at, kind, encode(row.sensor), encode(row)))
        task.run([elements])
        self.backend.write_batch(task.writes())
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
def test_each_row_stands_with_the_one_before_it(backends, changes, size, offset, strategies):
    rows, unmatched = [], 0
    with backends.lent() as new:
        table = Table(new(), lag(offset).operators[-1], strategies)
        for number in range(0, len(changes), size):
            part = [(kind, Reading("s", place, level)) for kind, place, level in changes[number : number + size]]
            table.run(part, number)
            for kind, row in part:
                place = next((at for at, one in enumerate(rows) if one.number == row.number), None)
                if kind.is_retraction:
                    unmatched += place is None
                    rows = [one for one in rows if one.number != row.number]
                elif place is None:
                    rows.append(row)
                else:
                    rows[place] = row
            expected = [step(row, rows[at - offset] if at >= offset else None) for at, row in enumerate(rows)]
            assert sorted(table.rows.values(), key=lambda one: one.number) == sorted(
                expected, key=lambda one: one.number
            )
        assert table.unmatched == unmatched


def test_only_the_rows_that_a_change_concerns_are_told(backend):
    table = Table(backend, lag().operators[-1], [Strategy.MAP])
    table.run([(INSERT, Reading("s", number, number)) for number in range(100)])
    told = table.run([(DELETE, Reading("s", 50, 0))])
    assert [(out.kind, msgspec.json.decode(out.raw)) for out in told] == [
        (DELETE, {"number": 50, "level": 50, "rise": 1}),
        (UPDATE_AFTER, {"number": 51, "level": 51, "rise": 2}),
    ]


def test_a_function_that_fails_is_told_with_its_row(backend):
    table = Table(backend, lag(function=lambda reading, _: 1 // reading.level).operators[-1], [Strategy.VALUE])
    with pytest.raises(
        UserFunctionError, match=r'operator \'steps\', key "s", record .*"level":0[^$]*ZeroDivisionError'
    ):
        table.run([(INSERT, Reading("s", 1, 0))])


def test_a_plan_keys_it_by_its_partition_and_merges_by_its_primary_key():
    plan = plan_stages(lag().sink("steps_of_sensors"))
    (stage,) = plan.keyed
    assert isinstance(stage.operator, Lag)
    assert (plan.ingest.key, stage.takes, stage.record, plan.primary_key) == (("sensor",), Reading, Step, ("number",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offset": 0}, "an offset of at least 1, not 0"),
        ({"primary_key": ("sensor",)}, "Step has no field 'sensor'"),
        ({"partition_by": ("rise",)}, "Reading has no field 'rise'"),
    ],
)
def test_a_lag_that_makes_no_sense_is_refused(arguments, message):
    source = Pipeline("steps").source("readings", Reading, event_time="at")
    whole = {"record": Step, "partition_by": ("sensor",), "primary_key": ("number",), **arguments}
    with pytest.raises(ValueError, match=message):
        source.lag("steps", step, **whole)
