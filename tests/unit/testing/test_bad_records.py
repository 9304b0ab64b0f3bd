"""Mistakes of user functions anywhere in a graph: each error names step and record, and nothing is committed."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.testing import PipelineHarness


class Row(Struct, frozen=True):
    key: str | None
    at: Timestamp
    size: float = 0.0
    number: int = 0


class Sends(KeyedProcessFunction[Row, Row]):
    """Sends one record, to the main or the side output."""

    def __init__(self, record, side=None):
        self._record, self._side = record, side

    async def process(self, row, ctx, /):
        if self._side is None:
            ctx.collect(self._record)
        else:
            ctx.output(self._side, self._record)


class Copies(KeyedProcessFunction[Row, Row]):
    async def process(self, row, ctx, /):
        ctx.collect(row)


ROWS = [Row("a", 1), Row("b", 2)]


def run(build, rows=ROWS):
    """Run the job that `build` makes from a stream."""
    pipeline = Pipeline("job")
    build(pipeline.source("rows", Row, event_time="at"))
    harness = PipelineHarness(pipeline)
    harness.feed("rows", rows)
    try:
        harness.run()
    except UserFunctionError:
        kinds = harness.table("checkpoints").column("kind").to_pylist()
        assert "batch" not in kinds
        assert harness.sink("sink") == []
        raise
    return harness


def copied(stream):
    return stream.key_by("key").process("copies", Copies()).sink("sink")


def keyed(key):
    return lambda rows: rows.key_by(key).process("copies", Copies()).sink("sink")


def raises(row):
    raise ValueError("boom")


def exits(row):
    raise SystemExit(3)


async def promise(row):
    return row


def later(row):
    promised = promise(row)
    promised.close()
    return promised


# -------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda rows: rows.map(raises, record=Row), r"'map raises', record {\"key\":\"a\".*boom"),
        (lambda rows: rows.map(exits, record=Row), r"'map exits'.*SystemExit: 3"),
        (lambda rows: rows.map(lambda _: None, record=Row), r"it returned None of type NoneType, not a Row: let it"),
        (lambda rows: rows.map(lambda _: 5, record=Row), r"it returned 5 of type int, not a Row"),
        (lambda rows: rows.map(later, record=Row), r"of type coroutine, not a Row"),
        (lambda rows: rows.filter(raises), r"'filter raises'.*boom"),
        (lambda rows: rows.filter(later), r"'filter later'.*coroutine object.* always true: return something true or"),
        (lambda rows: rows.filter(lambda _: (x for x in "ab")), r"generator object.*which is always true"),
        (lambda rows: rows.filter(lambda _: pa.array([1, 2]).to_numpy()), r"'filter <lambda>'.*ambiguous"),
        (lambda rows: rows.flat_map(raises, record=Row), r"'flat_map raises'.*boom"),
        (lambda rows: rows.flat_map(lambda row: (raises(r) for r in [row]), record=Row), "boom"),
        (
            lambda rows: rows.flat_map(lambda _: None, record=Row),
            r"None of type NoneType, not records: return a list",
        ),
        (lambda rows: rows.flat_map(lambda row: row, record=Row), r"of type Row, not records: return a list of them"),
        (lambda rows: rows.flat_map(lambda _: "ab", record=Row), r"it returned 'a' of type str, not a Row"),
        (lambda rows: rows.flat_map(lambda row: [row, None], record=Row), r"it returned None of type NoneType"),
        (lambda rows: rows.assign_event_time(raises), r"'assign_event_time raises'.*boom"),
        (lambda rows: rows.assign_event_time(lambda _: None), "whole number of milliseconds, not None"),
        (lambda rows: rows.assign_event_time(lambda _: 1.5), "whole number of milliseconds, not 1.5"),
        (lambda rows: rows.assign_event_time(lambda _: True), "whole number of milliseconds, not True"),
        (lambda rows: rows.assign_event_time(lambda _: 1 << 70), "must lie within .* ms of 1970, not at 11805916207"),
    ],
)
def test_step_that_fails_is_named(build, match):
    with pytest.raises(UserFunctionError, match=f"(?s){match}"):
        run(lambda rows: copied(build(rows)))


@pytest.mark.parametrize("step", ["map", "filter", "flat_map", "assign_event_time", "key_by"])
def test_coroutine_functions_are_refused_at_once(step):
    rows = Pipeline("job").source("rows", Row, event_time="at")
    more = {"record": Row} if step == "flat_map" else {}
    with pytest.raises(TypeError, match=rf"{step}\(promise\): the function is 'async def'; use async_wait\(\)"):
        getattr(rows, step)(promise, **more)


# --------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (raises, "(?s)'key_by raises'.*boom"),
        (exits, "(?s)'key_by exits'.*SystemExit: 3"),
        (later, "not coroutine"),
        (lambda _: [1], r"a key is text, a number, a truth value, a UUID, a time or a tuple of them, not list: \[1\]"),
        (lambda _: ([1],), "not list"),
        (lambda row: row, "not Row"),
        (lambda _: math.nan, "a key cannot be nan, since JSON cannot hold it: return another value, or None"),
        (lambda _: (1, -math.inf), "a key cannot be -inf"),
        (lambda _: "\ud800", "surrogates not allowed"),
    ],
)
def test_impossible_key_is_refused(key, match):
    with pytest.raises(UserFunctionError, match=match):
        run(keyed(key))


@pytest.mark.parametrize("key", [lambda _: None, lambda _: (1, None), lambda _: (1, (2, None))])
def test_records_without_a_key_are_put_aside(key):
    rows = run(keyed(key)).table("quarantine").to_pylist()
    assert [(row["raw"], row["error"]) for row in rows] == [
        ('{"key":"a","at":1,"size":0.0,"number":0}', "the key (<lambda>) is null"),
        ('{"key":"b","at":2,"size":0.0,"number":0}', "the key (<lambda>) is null"),
    ]


@pytest.mark.parametrize("key", ["x" * 3_000_000, 1 << 64, (), b"\xff", -0.0, ((1, True), "\u2028")])
def test_keys_may_be_large_and_odd(key):
    assert len(run(keyed(lambda _: key)).sink("sink")) == 2


# ------------------------------------------------------------------------------------------------ emitted records

BAD = {
    "nan": (Row("a", 1, math.nan), "size is nan, which JSON cannot hold"),
    "large": (Row("a", 1, 0.0, 1 << 70), "number is 1180591620717411303424, which 64 bits cannot hold"),
    "surrogate": (Row("\ud800", 1), r"key is '\\ud800', which is not UTF-8"),
    "wrong type": (Row("a", 1, "much"), "size is 'much', which is not float"),
    "wrong key": (Row([1], 1), r"key is \[1\], which is not str"),
    "no time": (Row("a", None), "at is null"),
}
SENT = {
    "map to keyed": ("map <lambda>", lambda rows, bad: copied(rows.map(lambda _: bad, record=Row))),
    "map to sink": ("map <lambda>", lambda rows, bad: rows.map(lambda _: bad, record=Row).sink("sink")),
    "flat_map, filter to keyed": (
        "flat_map <lambda>",
        lambda rows, bad: copied(rows.flat_map(lambda _: [bad], record=Row).filter(lambda _: True)),
    ),
    "map to key function": (
        "map <lambda>",
        lambda rows, bad: keyed(lambda row: row.key)(rows.map(lambda _: bad, record=Row)),
    ),
    "process to keyed": ("sends", lambda rows, bad: copied(rows.key_by("key").process("sends", Sends(bad)))),
    "process to sink": ("sends", lambda rows, bad: rows.key_by("key").process("sends", Sends(bad)).sink("sink")),
    "process to materializer": (
        "sends",
        lambda rows, bad: rows.key_by("key").process("sends", Sends(bad)).last_value("last", key=("key",)).sink("sink"),
    ),
    "side output to sink": ("sends", lambda rows, bad: aside(rows, bad).sink("sink")),
    "side output to keyed": ("sends", lambda rows, bad: copied(aside(rows, bad))),
}


def aside(rows, bad):
    sent = rows.key_by("key").process("sends", Sends(bad, "aside"))
    sent.sink("others")
    return sent.side("aside", Row)


@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("bad", BAD)
def test_record_that_columns_cannot_carry_is_refused(sent, bad):
    (maker, build), (record, why) = SENT[sent], BAD[bad]
    if bad == "nan" and sent.endswith("to sink"):
        (first, second) = run(lambda rows: build(rows, record)).sink("sink")  # a table can hold it
        assert math.isnan(first.size)
        assert math.isnan(second.size)
        return
    with pytest.raises(UserFunctionError, match=rf"'{maker}', record Row\(key=.*\nit emitted this record, and {why}"):
        run(lambda rows: build(rows, record))


@pytest.mark.parametrize("time", [1 << 62, 253_402_300_800_000, -62_135_596_800_001])
@pytest.mark.parametrize("sent", [name for name in SENT if name.endswith("to sink")])
def test_time_that_tables_cannot_hold_is_refused(sent, time):
    maker, build = SENT[sent]
    with pytest.raises(
        UserFunctionError, match=rf"(?s)'{maker}'.*at is {time} ms since 1970, which is outside the years 1 to 9999"
    ):
        run(lambda rows: build(rows, Row("a", time)))


def test_materializer_refuses_time_tables_cannot_hold():
    def merged(rows):
        late = rows.map(lambda row: Row(row.key, 1 << 62), record=Row)
        late.last_value("last", key=("key",)).sink("sink")

    with pytest.raises(UserFunctionError, match=r"(?s)'last'.*at is 4611686018427387904 ms since 1970"):
        run(merged)


def test_errors_show_records_json_cannot_encode():
    def build(rows):
        copied(rows.map(lambda _: Row("\ud800", 1), record=Row).filter(raises))

    with pytest.raises(UserFunctionError, match=r"(?s)'filter raises', record Row\(key='\\ud800'.*boom"):
        run(build)
