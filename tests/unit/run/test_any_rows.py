"""Files of any rows: none raises, and each row is taken in or quarantined with its raw text (in memory, no JVM)."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import field

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp
from headrace.records.value_rules import TOO_FINE
from headrace.storage.storage import Storage
from headrace.tables.schemas import QUARANTINE
from headrace.testing import World
from tests.unit.support.fuzzing import examples

WORDS = st.sampled_from(
    ["", "a", "1", "true", "2024-01-01T00:00:00Z", "\x00", "é", "+I", "\N{GRINNING FACE}"]
) | st.text(max_size=3)
_INT64 = st.sampled_from([0, -1, 2**63 - 1, -(2**63), 253_402_300_800, -62_135_596_801]) | st.integers(
    -(2**63), 2**63 - 1
)
_INT32 = st.sampled_from([0, 2**31 - 1, -(2**31), 2_932_897, -719_163]) | st.integers(-(2**31), 2**31 - 1)
_ZONES = st.sampled_from([None, "UTC", "+05:30", "America/New_York", "Nowhere/At_All", ""])
_UNITS = st.sampled_from(["s", "ms", "us", "ns"])


def _lists(values, size):
    return st.lists(st.none() | values, min_size=size, max_size=size)


def _arrays(values, kind, size):
    return _lists(values, size).map(lambda values: pa.array(values, kind))


def _viewed(values, stored, kind, size):
    """Draw the numbers behind a type, also numbers that represent no value of it."""
    return _lists(values, size).map(lambda values: pa.array(values, stored).view(kind))


def texts(size):
    """Draw text, also invalid UTF-8."""
    broken = _lists(st.sampled_from([b"a", b"", b"\xff", b"\xc3", b"a\xed\xa0\x80"]) | st.binary(max_size=3), size)

    def unchecked(values, kind, stored):
        return pa.Array.from_buffers(kind, size, pa.array(values, stored).buffers())

    kinds = st.sampled_from([(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())])
    return st.builds(lambda values, kind: unchecked(values, *kind), broken, kinds) | _arrays(WORDS, pa.string(), size)


def _numbers(size):
    floats = st.floats(allow_nan=True, allow_infinity=True)
    decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**30), max_value=10**30)
    return st.one_of(
        _arrays(_INT64, pa.int64(), size),
        _arrays(_INT32, pa.int32(), size),
        _arrays(st.integers(0, 2**64 - 1), pa.uint64(), size),
        _arrays(st.integers(-128, 127), pa.int8(), size),
        _arrays(floats, pa.float64(), size),
        _arrays(st.floats(width=32), pa.float32(), size),
        _arrays(decimals, pa.decimal128(38, 2), size),
        _arrays(decimals, pa.decimal256(60, 4), size),
    )


def times(size):
    """Draw timestamps in all units and time zones, also outside any calendar, and days, times and durations."""
    stamps = st.tuples(_UNITS, _ZONES).flatmap(
        lambda parts: _viewed(_INT64, pa.int64(), pa.timestamp(parts[0], tz=parts[1] or None), size)
    )
    return st.one_of(
        stamps,
        _viewed(_INT32, pa.int32(), pa.date32(), size),
        _viewed(_INT64, pa.int64(), pa.date64(), size),
        _viewed(_INT32, pa.int32(), pa.time32("ms"), size),
        _viewed(_INT64, pa.int64(), pa.time64("us"), size),
        _viewed(_INT64, pa.int64(), pa.time64("ns"), size),
        _UNITS.flatmap(lambda unit: _viewed(_INT64, pa.int64(), pa.duration(unit), size)),
    )


def _plain(size):
    return st.one_of(
        texts(size),
        _numbers(size),
        times(size),
        _arrays(st.booleans(), pa.bool_(), size),
        _arrays(st.binary(max_size=4), pa.binary(), size),
        _arrays(st.binary(min_size=2, max_size=2), pa.binary(2), size),
        st.just(pa.nulls(size)),
        _arrays(WORDS, pa.string(), size).map(pa.Array.dictionary_encode),
    )


def _nested(size, depth):
    if not depth:
        return _plain(size)

    def as_list(lengths, items):
        offsets = [0]
        for length in lengths:
            offsets.append(min(offsets[-1] + length, len(items)))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)

    def as_map(lengths, keys, items):
        offsets = [0]
        for length in lengths:
            offsets.append(min(offsets[-1] + length, len(items)))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)

    lengths = st.lists(st.integers(0, 2), min_size=size, max_size=size)
    inner = _nested(2 * size, depth - 1)
    keys = _arrays(WORDS, pa.string(), 2 * size).map(lambda values: values.fill_null("none"))
    structs = st.dictionaries(st.sampled_from(["a", "b", "n"]), _nested(size, depth - 1), min_size=1, max_size=2)
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda values: pa.array(values, pa.bool_()))
    return st.one_of(
        _plain(size),
        st.builds(as_list, lengths, inner),
        st.builds(as_map, lengths, keys, inner),
        st.builds(
            lambda fields, nulls: pa.StructArray.from_arrays([*fields.values()], [*fields], mask=nulls), structs, mask
        ),
    )


def columns(size, depth=2):
    """Draw columns of any type, including lists, maps and structs."""
    return _nested(size, depth)


SIZE = 3
FILE = "2024-01-01.parquet"
NOW = 1_704_103_200_000
"""The day of the file, at ten o'clock (ms)."""


class Flat(Struct, frozen=True):
    id: str
    at: Timestamp
    size: float | None = None
    number: int = 0


class Part(Struct, frozen=True):
    n: int
    at: Timestamp | None = None


class Deep(Struct, frozen=True):
    id: str
    at: Timestamp
    parts: list[Part] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


class Checked(Struct, frozen=True):
    id: str
    at: Timestamp
    number: int = 0

    def __post_init__(self):
        if self.number < 0:
            raise ValueError("number is negative")


class Copies(KeyedProcessFunction[Flat, Flat]):
    async def process(self, row, ctx, /):
        ctx.collect(row)


def plain(record, **options):
    return Pipeline("rows").source("rows", record, event_time="at", **options).sink("taken")


def copies(**options):
    rows = Pipeline("rows").source("rows", Flat, event_time="at", **options).key_by("id")
    return rows.process("copies", Copies()).sink("taken")


PIPELINES = {
    "flat": plain(Flat),
    "nested": plain(Deep),
    "checked": plain(Checked),
    "sorted": plain(Flat, order_by=("number",)),
    "sorted copies": copies(order_by=("number",)),
    "with kinds": plain(Flat, row_kind="kind"),
    "keyed": copies(),
}
GOOD_IDS = st.lists(st.sampled_from(["a", "b", ""]), min_size=SIZE, max_size=SIZE).map(pa.array)
GOOD_TIMES = st.lists(st.integers(0, 10**12), min_size=SIZE, max_size=SIZE).map(
    lambda values: pa.array(values, pa.timestamp("ms"))
)
KINDS = st.lists(st.sampled_from(["+I", "-U", "+U", "-D"]), min_size=SIZE, max_size=SIZE).map(pa.array)
FIELDS = {name: columns(SIZE) for name in ("size", "number", "parts", "texts", "extra", "more")}
TABLES = st.fixed_dictionaries(
    {
        "id": GOOD_IDS | texts(SIZE) | columns(SIZE),
        "at": GOOD_TIMES | times(SIZE) | columns(SIZE),
        "kind": KINDS | texts(SIZE) | columns(SIZE),
    },
    optional=FIELDS,
).map(pa.table)


def harness_of(pipeline, world, **source):
    source = {"path": f"{world.storage}/input", "on_bad_file": "quarantine", "on_bad_row": "quarantine", **source}
    return world.job(pipeline, job={"sources": {"rows": source}})


def as_stored(table, world):
    """Write a table into the source's folder, and return it as a reader sees it; None if Parquet cannot store it."""
    try:
        Storage(f"{world.storage}/input").stage(FILE, table)
        store, path = Storage(f"{world.storage}/input/{FILE}").file_system()
        return pq.ParquetFile(store.open_input_file(path)).read()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None


@pytest.mark.slow
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
@examples(8)
@given(table=TABLES)
def test_each_row_is_taken_in_or_set_aside(name, complete, table):
    world = World(now=NOW)
    stored = as_stored(table, world)
    assume(stored is not None)
    # A source with complete intervals is read by the driver as well, for the order of its rows.
    harness = harness_of(PIPELINES[name], world, complete_intervals=complete, interval="%Y-%m-%d")
    harness.run()
    rows = harness.sink_table("taken").num_rows
    aside = harness.live(QUARANTINE)
    positions = {row["position"] for row in aside}
    assert all(row["error"] for row in aside)
    if positions == {FILE}:  # only a time finer than a millisecond refuses its file, in one entry
        assert (rows, len(aside), TOO_FINE in aside[0]["error"]) == (0, 1, True)
        return
    assert len(positions) + rows == SIZE
    for row in aside:
        assert set(msgspec.json.decode(row["raw"])) == set(table.schema.names)


def sizes_in_order(table, complete):
    """Return the sizes of rows that a source ordered by `number` takes in, in arrival order."""
    world = World(now=NOW)
    Storage(f"{world.storage}/input").stage(FILE, table)
    harness = harness_of(PIPELINES["sorted copies"], world, complete_intervals=complete, interval="%Y-%m-%d")
    harness.run()
    sizes = harness.sink_table("taken")["size"].to_pylist()
    aside = [(row["position"], row["error"]) for row in harness.live(QUARANTINE)]
    return sizes, aside


def ordered(numbers, **columns):
    return pa.table({"id": ["a"] * 3, "at": [1, 2, 3], "size": [0.0, 1.0, 2.0], "number": numbers, **columns})


@pytest.mark.parametrize("complete", [False, True])
def test_only_rows_without_an_order_are_set_aside(complete):
    texts = pa.StructArray.from_arrays([pa.array(["b", "a", "c"]).dictionary_encode()], ["text"])
    _, aside = sizes_in_order(ordered(texts), complete)
    assert [position for position, _ in aside] == [f"{FILE}:{row}" for row in range(3)]
    lists = ordered(pa.array([[1], [2], [3]]))
    _, aside = sizes_in_order(lists, complete)
    assert aside == [(f"{FILE}:{row}", f"number is [{row + 1}], which is not int64") for row in range(3)]


@pytest.mark.parametrize("complete", [False, True])
def test_null_is_in_order_as_its_default(complete):
    assert sizes_in_order(ordered(pa.array([2, None, -1])), complete) == ([2, 1, 0], [])
    assert sizes_in_order(ordered(pa.array([2, None, -1]).dictionary_encode()), complete) == ([2, 1, 0], [])


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("kind", [pa.float16(), pa.dictionary(pa.int32(), pa.int64()), pa.uint8()])
def test_any_type_of_numbers_orders_rows(kind, complete):
    numbers = pa.array([2, 3, 1])
    result = numbers.dictionary_encode() if pa.types.is_dictionary(kind) else numbers.cast(pa.float32()).cast(kind)
    assert sizes_in_order(ordered(result), complete) == ([2, 0, 1], [])


@pytest.mark.parametrize("complete", [False, True])
def test_rows_without_order_column_keep_file_order(complete):
    assert sizes_in_order(ordered([0, 0, 0]).drop(["number"]), complete) == ([0, 1, 2], [])


@pytest.mark.parametrize("complete", [False, True])
def test_invalid_column_name_sets_file_aside(complete):
    world = World(now=NOW)
    Storage(f"{world.storage}/input").stage(FILE, pa.table({"id": ["a"], "at": [1], "xyz": [1]}))
    file = world.disk.files[f"input/{FILE}"]
    file.content = file.content.replace(b"xyz", b"x\xffz")
    harness = harness_of(PIPELINES["flat"], world, complete_intervals=complete, interval="%Y-%m-%d")
    harness.run()
    (row,) = harness.live(QUARANTINE)
    assert row["position"] == FILE
    assert "the name of a column, is not UTF-8" in row["error"]


@examples(8)
@given(data=st.data())
def test_no_file_damage_crashes_the_run(data):
    world = World(now=NOW)
    Storage(f"{world.storage}/input").stage(FILE, pa.table({"id": ["a", "b"], "at": [1, 2], "more": [[1], []]}))
    file = world.disk.files[f"input/{FILE}"]
    content = bytearray(file.content)
    places = st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), min_size=1, max_size=5)
    for place, value in data.draw(places):
        content[place] = value
    file.content = bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    harness_of(PIPELINES["flat"], world).run()
