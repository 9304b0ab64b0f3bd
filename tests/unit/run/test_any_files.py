"""Files with any bytes and any name in a source's folder: rows are taken in or set aside, or the run says why not (no JVM)."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp
from headrace.errors import ConfigError, IntervalError, SourceError
from headrace.storage.storage import Storage
from headrace.tables.schemas import QUARANTINE
from headrace.testing import World
from tests.unit.support.fuzzing import examples

FILE = "2024-01-01.parquet"


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    size: float | None = None


class Copies(KeyedProcessFunction[Row, Row]):
    async def process(self, row, ctx, /):
        ctx.collect(row)


def pipeline():
    rows = Pipeline("rows").source("rows", Row, event_time="at", order_by=("size",)).key_by("id")
    return rows.process("copies", Copies()).sink("taken")


def parquet(table, **options):
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def other(write, table):
    file = io.BytesIO()
    write(table, file)
    return file.getvalue()


ROWS = pa.table({"id": ["a", "b", "c"], "at": [1, 2, 3], "size": [0.5, None, 1.5], "more": [[1], [], None]})
VALID = {
    "plain": parquet(ROWS),
    "pages of version 2": parquet(ROWS, data_page_version="2.0", compression="zstd", use_dictionary=False),
    "a group for each row": parquet(ROWS, row_group_size=1, compression="gzip"),
    "checksums": parquet(ROWS, write_page_checksum=True, compression="none"),
    "no rows": parquet(ROWS.slice(0, 0)),
    "another order": parquet(ROWS.select(["more", "size", "at", "id"])),
    "other types": parquet(pa.table({"id": [1, 2], "at": ["x", "2024-01-01"], "size": [["1"], []]})),
    "times for numbers": parquet(ROWS.set_column(1, "at", pa.array([1, 2, 3], pa.timestamp("ns", "Asia/Tokyo")))),
    "no column that is asked for": parquet(pa.table({"x": [1]})),
    "no columns": parquet(pa.table({})),
    "columns twice": parquet(
        pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array([1])], ["id", "id", "at"])
    ),
    "many rows": parquet(pa.table({"id": ["a"] * 5000, "at": range(5000)}), row_group_size=5000),
}
OTHERS = {
    "nothing": b"",
    "a word": b"PAR1",
    "two words": b"PAR1PAR1",
    "a footer's length beyond the file": b"PAR1\xff\xff\xff\x7fPAR1",
    "encrypted": b"PARE" + bytes(20) + b"PARE",
    "CSV": other(pyarrow.csv.write_csv, ROWS.drop(["more"])),
    "ORC": other(pyarrow.orc.write_table, ROWS),
    "Feather": other(pyarrow.feather.write_feather, ROWS),
    "JSON": b'{"id": "a", "at": 1}\n',
    "zeros": bytes(500),
}
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        "a b",
        "%41%2F",
        "a\nb",
        "\u202e",
        "'\"\\",
        "*?[x]",
        "{x}",
        "p=1",
        ":",
        "#",
        "~",
        "\x7f",
        "é",
        "e\u0301",
        "x" * 240,
        "9" * 30,
    ]
)
DATES = st.dates().map(str) | st.sampled_from(["9999-12-31", "0001-01-01", "2024-02-29", "2024-02-30"])


@st.composite
def damaged(draw):
    content = draw(st.sampled_from(list(VALID.values())))
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=4)):
        content = content[:place] + bytes([value]) + content[place + 1 :]
    for place, piece in draw(st.lists(st.tuples(st.integers(-60, -1), st.binary(min_size=1, max_size=4)), max_size=2)):
        content = content[:place] + piece + content[place + len(piece) :]
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def harness_of(world, **source):
    rows = {"path": f"{world.storage}/input", "max_ahead": "none", **source}
    return world.job(pipeline(), job={"sources": {"rows": rows}})


def put(world, content, name=FILE):
    Storage(f"{world.storage}/input").stage(name, ROWS)
    world.disk.files[f"input/{name}"].content = content


def outcome(harness):
    """Return the number of rows taken in, and the positions of the rows set aside."""
    aside = harness.live(QUARANTINE)
    assert all(row["error"] for row in aside)
    return harness.sink_table("taken").num_rows, {row["position"] for row in aside}


def rows_in(content):
    return pq.read_metadata(io.BytesIO(content)).num_rows


LIMITS = st.sampled_from([None, 1, 10**6])


@pytest.mark.slow
@examples(25)
@given(
    content=damaged() | st.binary(max_size=60) | st.sampled_from(list(OTHERS.values())),
    complete=st.booleans(),
    limit=LIMITS,
)
def test_any_file_is_taken_in_or_set_aside(content, complete, limit):
    world = World()
    put(world, content)
    complete = {"complete_intervals": complete, "interval": "%Y-%m-%d"}
    harness = harness_of(world, on_bad_file="quarantine", max_rows_per_batch=limit, **complete)
    harness.run()
    taken, aside = outcome(harness)
    assert aside == {FILE} if FILE in aside else taken + len(aside) == rows_in(content)


@examples(10)
@given(content=damaged() | st.sampled_from(list(OTHERS.values())), complete=st.booleans(), limit=LIMITS)
def test_unreadable_file_stops_the_run_by_default(content, complete, limit):
    world = World()
    put(world, content)
    complete = {"complete_intervals": complete, "interval": "%Y-%m-%d"}
    harness = harness_of(world, on_bad_file="fail", on_bad_row="fail", max_rows_per_batch=limit, **complete)
    try:
        harness.run()
    except SourceError as error:
        assert "rows" in str(error)  # noqa: PT017 - it may also pass
    else:
        taken, aside = outcome(harness)
        assert taken + len(aside) == rows_in(content)


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_are_set_aside_whole(name):
    world = World()
    put(world, OTHERS[name])
    harness = harness_of(world, on_bad_file="quarantine")
    harness.run()
    assert outcome(harness) == (0, {FILE})


@pytest.mark.slow
@examples(8)
@given(names=st.lists(NAMES, min_size=1, max_size=3, unique=True), complete=st.booleans())
def test_files_of_any_name_are_read_once(names, complete):
    world = World()
    for name in names:
        put(world, VALID["plain"], f"{name}.parquet")
    harness = harness_of(world, complete_intervals=complete, interval="%Y-%m-%d" if complete else None)
    try:
        harness.run()
        harness.run()
    except SourceError as error:
        assert "does not fit the interval pattern" in str(error)  # noqa: PT017 - it may also pass
    else:
        read = [name for name in names if f"{name}.parquet"[0] not in "._"]
        assert outcome(harness) == (3 * len(read), set())


@examples(8)
@given(names=st.lists(DATES, min_size=1, max_size=3, unique=True), complete=st.booleans(), by_interval=st.booleans())
@example(names=["9999-12-31"], complete=True, by_interval=False)
def test_files_of_any_day_are_read_or_refused(names, complete, by_interval):
    world = World()
    for name in names:
        put(world, VALID["plain"], f"{name}.parquet")
    harness = harness_of(world, complete_intervals=complete, interval="%Y-%m-%d")
    interval = {"mode": "interval", "interval_start": 0, "interval_end": 86_400_000} if by_interval else {}
    try:
        harness.run(**interval)
        harness.run(**interval)
    except (SourceError, IntervalError, ConfigError):
        return


@pytest.mark.parametrize(("name", "pattern"), [("9999-12-31", "%Y-%m-%d"), ("9999-12", "%Y-%m"), ("9999", "%Y")])
def test_interval_behind_the_calendar_is_refused(name, pattern):
    world = World()
    put(world, VALID["plain"], f"{name}.parquet")
    harness = harness_of(world, complete_intervals=True, interval=pattern)
    with pytest.raises(SourceError, match=rf"file '{name}.parquet' of source 'rows' .*ends behind the year 9999"):
        harness.run()


ODD_ROWS = 37


def with_count(rows, *, everywhere):
    """Return a file of 37 rows whose footer says another number, also for its row group and columns if `everywhere`."""
    content = parquet(pa.table({"id": ["no"] * ODD_ROWS, "at": pa.array(range(ODD_ROWS), pa.int64())}))
    size = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - size], content[-8 - size : -8]
    count, claim, first = thrift_long(ODD_ROWS), thrift_long(rows), b"\x19"  # row groups, a list, follow the number
    old, new = (count, claim) if everywhere else (count + first, claim + first)
    assert footer.count(old) == (4 if everywhere else 1)
    footer = footer.replace(old, new)
    return body + footer + len(footer).to_bytes(4, "little") + content[-4:]


def thrift_long(value):
    """Return a field of 64 bits in Thrift's compact form."""
    zigzag, encoded = value << 1, bytearray([0x16])
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*encoded, zigzag])


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("rows", [0, 38, 2**31, 2**40, 2**61])
def test_wrong_number_of_rows_is_a_bad_file(rows, everywhere, complete):
    world = World()
    put(world, with_count(rows, everywhere=everywhere))
    complete = {"complete_intervals": complete, "interval": "%Y-%m-%d"}
    with pytest.raises(SourceError, match=r"cannot read .*2024-01-01\.parquet"):
        harness_of(world, **complete).run()
    harness = harness_of(world, on_bad_file="quarantine", **complete)
    harness.run()
    assert outcome(harness) == (0, {FILE})
