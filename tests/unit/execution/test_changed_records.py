"""Code may change a record behind `collect`, `yield` or `return`: what was emitted stays as it was then."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, FixedDelay, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.execution.record_copies import copied, is_immutable
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples


class Line(Struct):
    key: str
    number: Timestamp
    tags: list[str] = msgspec.field(default_factory=list)


class Frozen(Struct, frozen=True):
    key: str
    tags: list[str]


class Doubled(Struct):
    number: int
    parts: list[int]

    def __post_init__(self):
        self.number *= 2


class Colour(enum.Enum):
    RED = "red"


class Fixed(Struct, frozen=True):
    text: Annotated[str, msgspec.Meta(max_length=9)]
    at: dt.datetime | None
    price: Decimal
    colour: Colour
    letter: Literal["a", "b"]
    pairs: tuple[tuple[int, float], ...]
    inner: Fixed | None = None


class Holder(Struct, frozen=True):
    line: Line


class Unknown(Struct, frozen=True):
    anything: Any


LINES = [Line("a", number, ["x"]) for number in range(3)]


def source():
    return Pipeline("lines").source("lines", Line, event_time="number")


def emitted(pipeline, sinks=("out",), **options):
    """Return what a job emits of `LINES`, by sink, in order of the numbers."""
    harness = PipelineHarness(pipeline, **options)
    harness.feed("lines", LINES)
    harness.run(end_of_input=True)
    return harness, *(sorted(map(msgspec.structs.astuple, harness.sink(sink)), key=repr) for sink in sinks)


@pytest.mark.parametrize(
    ("record", "expected"),
    [(Fixed, True), (Line, False), (Frozen, False), (Doubled, False), (Holder, False), (Unknown, False)],
)
def test_type_says_whether_records_can_change(record, expected):
    assert is_immutable(record) is expected


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.builds(Line, st.text(max_size=2), st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Unknown, inner)
    ),
    max_leaves=9,
)


@examples(20)
@given(value=VALUES)
def test_copy_is_equal_and_shares_nothing(value):
    record = Unknown(value)
    copy, before = copied(record), msgspec.json.encode(record)
    assert copy == record
    change_all(record)
    assert msgspec.json.encode(copy) == before


def change_all(value):
    """Change all that can be changed in a value, in place."""
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            change_all(getattr(value, name))
        if isinstance(value, Line):
            value.number += 1
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            change_all(part)
        if isinstance(value, list):
            value.append("changed")
        elif isinstance(value, dict):
            value["changed"] = "changed"


def test_copies_do_not_run_post_init():
    record = Doubled(1, [1])
    copy = copied(record)
    record.parts.append(2)
    assert (type(copy), copy) == (Doubled, copied(Doubled(1, [1])))
    assert (copy.number, copy.parts) == (2, [1])


class Reuse(KeyedProcessFunction[Line, Line]):
    """Emits one record again and again: on records, aside, and when a timer fires."""

    total = ValueState("total", Line)

    async def process(self, record, ctx, /):
        total = await self.total.value() or Line("a", 0)
        for _ in range(2):
            total.number += 1
            total.tags.append(str(total.number))
            ctx.collect(total)
            ctx.output("aside", total)
        ctx.quarantine("seen")
        record.number = -1
        await self.total.update(total)
        ctx.timers.register_event_time(10)

    async def on_timer(self, timestamp, ctx, /):
        total = await self.total.value()
        total.number = 100
        ctx.collect(total)
        total.number = 1000


def test_collected_records_stay_as_they_were():
    stream = source().key_by("key").process("reuse", Reuse()).side_output("aside", Line, sink="aside")
    harness, out, aside = emitted(stream.sink("out"), ("out", "aside"))
    tags = [str(number) for number in range(1, 7)]
    counted = [("a", number, tags[:number]) for number in range(1, 7)]
    assert aside == counted
    assert out == sorted([*counted, ("a", 100, tags)], key=repr)
    raw = harness.table("quarantine").column("raw").to_pylist()
    assert sorted(msgspec.json.decode(row)["number"] for row in raw) == [0, 1, 2]


def test_yielded_and_returned_records_stay_as_they_were():
    mine = Line("b", 0)

    def again(line: Line) -> Line:
        mine.number = line.number
        return mine

    def twice(line):
        for place in range(2):
            line.number = 10 * line.number + place
            yield line

    _, out = emitted(source().map(again).flat_map(twice, record=Line).sink("out"))
    assert [row[1] for row in out] == [0, 1, 10, 101, 20, 201]


def test_branches_do_not_see_changes_of_each_other():
    def spoil(line: Line) -> Line:
        line.number += 100
        line.tags.clear()
        return line

    lines = source()
    lines.map(spoil).sink("spoilt")
    _, out, spoilt = emitted(lines.filter(lambda line: line.number < 100).sink("out"), ("out", "spoilt"))
    assert out == [("a", number, ["x"]) for number in range(3)]
    assert [row[1] for row in spoilt] == [100, 101, 102]


def test_answers_and_asked_records_stay_as_they_were():
    class Ask(AsyncFunction[Line, Line]):
        """Changes what it gets, answers with one list and one record, and fails at first."""

        def __init__(self):
            self.answer = [Line("a", 0)]
            self.calls = 0

        async def invoke(self, record, /):
            record.number += 10
            self.calls += 1
            if self.calls <= 2:
                raise OSError("not yet")
            self.answer[0].number = record.number
            return self.answer

    retry = FixedDelay(max_retries=5, delay=dt.timedelta(milliseconds=1))
    wait = source().async_wait("ask", Ask(), capacity=1, timeout=dt.timedelta(seconds=9), retry=retry)
    _, out = emitted(wait.sink("out"))
    assert [row[1] for row in out] == [10, 11, 12]
