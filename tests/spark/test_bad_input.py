"""Bad input is refused or quarantined, and never delays other rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.edits.requeue import requeue
from headrace.errors import SourceError
from headrace.tables.schemas import QUARANTINE, STATE_TABLES
from tests.jobs.home import Home
from tests.jobs.outcome import checkpoints, live_rows, outcome
from tests.jobs.purchase_files import SCHEMA, day_name, purchases_of, write_days, write_rows
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

QUICK: dict[str, Any] = {"parallelism": 1, "backend": "hashmap"}
ROWS = 30


def rows_of(day: int) -> list[dict[str, Any]]:
    return purchases_of(day, rows=ROWS)


def expected(*days: Any):
    return by_hand(days)


def quarantined(home: Home) -> list[dict[str, Any]]:
    """Return the rows that the source has refused."""
    return [row for row in all_quarantined(home) if row["origin"] in {"row", "part", "file"}]


def all_quarantined(home: Home) -> list[dict[str, Any]]:
    last = checkpoints(home.config())[-1]
    names = sorted({*STATE_TABLES[QUARANTINE].schema.names} - {"checkpoint_id", "deleted"})
    rows = live_rows(home.config(), last, QUARANTINE)
    return [dict(zip(names, row, strict=True)) for row in rows]


def configure(home: Home, **source: Any) -> None:
    home.configure({"sources": {"purchases": source}})


# ------------------------------------------------------------------------------------------- whole files


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def no_parquet(path: Path) -> None:
    path.write_text("seq,at,customer\n1,2,me\n")


def damaged_inside(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:600] = b"\xff" * 596
    path.write_bytes(bytes(content))


def without_a_column(path: Path) -> None:
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["cents"]), path)


def with_a_column_twice(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    pq.write_table(table.append_column("cents", table["cents"]), path)


def with_rows_that_cannot_be_ordered(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    lists = pa.array([[number] for number in table["seq"].to_pylist()])
    pq.write_table(table.set_column(0, "seq", lists), path)


BAD_FILES = [
    truncated,
    emptied,
    no_parquet,
    damaged_inside,
    without_a_column,
    with_a_column_twice,
]


@pytest.mark.slow
@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda spoil: spoil.__name__)
def test_bad_file_fails_run_until_repaired(home, run, spoil):
    write_days(home.input, range(3), rows=ROWS)
    configure(home, max_files_per_batch=1)
    good = (home.input / day_name(1)).read_bytes()
    spoil(home.input / day_name(1))
    with pytest.raises(SourceError, match=day_name(1)) as caught:
        run(home, **QUICK)
    assert caught.value.exit_code == 7
    assert_as_by_hand(home.config(), expected(rows_of(0)))
    (home.input / day_name(1)).write_bytes(good)
    run(home, **QUICK)
    assert_as_by_hand(home.config(), expected(*map(rows_of, range(3))))


@pytest.mark.slow
@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda spoil: spoil.__name__)
def test_bad_file_is_quarantined_if_configured(home, run, spoil):
    write_days(home.input, range(3), rows=ROWS)
    configure(home, max_files_per_batch=2, on_bad_file="quarantine")
    spoil(home.input / day_name(1))
    counted = spoil not in {truncated, emptied, no_parquet}  # its rows have their places in the order of arrival
    run(home, **QUICK)
    missing = [None] * ROWS if counted else []
    result = by_hand([])
    result.take([*_in_order(0), *missing, *_in_order(2)])
    assert_as_by_hand(home.config(), result)
    (bad,) = quarantined(home)
    assert (bad["source"], bad["position"]) == ("purchases", day_name(1))
    assert bad["error"]


def test_unsortable_rows_are_quarantined_individually(home, run):
    write_days(home.input, range(3), rows=ROWS)
    with_rows_that_cannot_be_ordered(home.input / day_name(1))
    configure(home, max_quarantined="none")
    run(home, **QUICK)
    result = by_hand([])
    result.take([*_in_order(0), *[PUT_ASIDE] * ROWS, *_in_order(2)])
    assert_as_by_hand(home.config(), result)
    assert {row["position"] for row in quarantined(home)} == {f"{day_name(1)}:{number}" for number in range(ROWS)}


def test_requeued_repaired_file_is_read_last(home, run):
    write_days(home.input, range(3), rows=ROWS)
    configure(home, on_bad_file="quarantine")
    good = (home.input / day_name(1)).read_bytes()
    truncated(home.input / day_name(1))
    run(home, **QUICK)
    (home.input / day_name(1)).write_bytes(good)
    assert requeue(home.config(), "by-hand").metrics["requeued_files"] == 1
    run(home)
    result = by_hand([])
    result.take([*_in_order(0), *_in_order(2), *_in_order(1)])
    assert_as_by_hand(home.config(), result)
    assert quarantined(home) == []


def test_still_bad_requeued_rows_return_to_quarantine(home, run):
    rows = rows_of(0)
    rows[3]["cents"] = rows[9]["cents"] = None
    write_rows(home.input, day_name(0), rows)
    run(home, **QUICK)
    before = quarantined(home)
    for _ in range(2):
        assert requeue(home.config(), "by-hand").metrics["requeued_rows"] == len(before)
        assert quarantined(home) == []
        run(home, **QUICK)
        assert quarantined(home) == before
    assert len(before) == 2


PUT_ASIDE = None
"""Effect of a row that is set aside: it has a place in the order, and moves no clock."""


def _in_order(day: int) -> list[dict[str, Any]]:
    return sorted(rows_of(day), key=lambda row: row["seq"])


def test_late_file_name_is_refused(home, run):
    write_days(home.input, [0, 2], rows=ROWS)
    run(home, **QUICK)
    write_days(home.input, [1], rows=ROWS)
    with pytest.raises(SourceError, match=rf"1 file appeared behind .*{day_name(2)}.* newest is {day_name(1)}"):
        run(home, **QUICK)
    (home.input / day_name(1)).rename(home.input / day_name(3))
    run(home, **QUICK)
    assert_as_by_hand(home.config(), expected(rows_of(0), rows_of(2), rows_of(1)))


def test_file_name_without_interval_is_refused(home, run):
    write_days(home.input, [0], rows=ROWS)
    write_rows(home.input, "notes.parquet", [])
    with pytest.raises(SourceError, match=r"'notes\.parquet'.*does not fit the interval pattern"):
        run(home, **QUICK)


def test_spark_and_half_written_files_are_ignored(home, run):
    write_days(home.input, [0], rows=ROWS)
    for name in ("_2024-03-02.parquet", ".2024-03-02.parquet", "_SUCCESS", "2024-03-02.parquet.tmp"):
        (home.input / name).write_bytes(b"not yet")
    run(home, **QUICK)
    assert_as_by_hand(home.config(), expected(rows_of(0)))


def test_folder_that_is_missing_is_named(home, run):
    configure(home, path="nowhere")
    with pytest.raises(SourceError, match="there is no folder .*nowhere"):
        run(home, **QUICK)


# --------------------------------------------------------------------------------------------- single rows

BAD_VALUES = [
    ("kind", "?!", "kind is '?!'"),
    ("kind", None, "kind is None"),
    ("item", "figs", "item is 'figs'"),
    ("item", None, "item is null"),
    ("cents", None, "cents is null"),
    ("at", None, "at is null"),
]


@pytest.mark.parametrize(("column", "value", "error"), BAD_VALUES)
def test_bad_row_is_set_aside_and_others_processed(home, run, column, value, error):
    rows = rows_of(0)
    write_rows(home.input, day_name(0), [*rows[:10], {**rows[10], column: value}, *rows[11:]])
    run(home, **QUICK)
    result = by_hand([])
    result.take([*rows[:10], PUT_ASIDE, *rows[11:]])
    assert_as_by_hand(home.config(), result)
    (bad,) = quarantined(home)
    assert (bad["source"], bad["position"]) == ("purchases", f"{day_name(0)}:10")
    assert error in bad["error"]
    assert f'"seq":{rows[10]["seq"]}' in bad["raw"]


def test_bad_row_fails_run_if_configured(home, run):
    rows = rows_of(0)
    write_rows(home.input, day_name(0), [*rows[:10], {**rows[10], "item": "figs"}, *rows[11:]])
    configure(home, on_bad_row="fail")
    with pytest.raises(SourceError, match=rf"row 10 of .*{day_name(0)}: item is 'figs'"):
        run(home, **QUICK)
    write_rows(home.input, day_name(0), rows)
    run(home, **QUICK)
    assert_as_by_hand(home.config(), expected(rows))


def test_row_without_key_is_set_aside(home, run):
    """The row still moves the clock."""
    rows = [{**row, "customer": None if number == 5 else row["customer"]} for number, row in enumerate(rows_of(0))]
    write_rows(home.input, day_name(0), rows)
    run(home, **QUICK)
    assert_as_by_hand(home.config(), expected(rows))
    errors = [row[0] for row in outcome(home.config()).state["quarantine"]]
    assert errors.count("the key (customer) is null") == 2  # the generated rows contain one already


@pytest.mark.slow
def test_file_of_only_bad_rows_is_taken_in(home, run):
    rows = [{**row, "item": "figs"} for row in rows_of(0)]
    write_rows(home.input, day_name(0), rows)
    with pytest.raises(SourceError, match=rf"all {ROWS} rows of .*{day_name(0)} do not fit"):
        run(home, **QUICK)
    configure(home, max_quarantined="none")
    report = run(home, **QUICK)
    assert (report.rows_in, report.quarantined) == (ROWS, ROWS)
    write_days(home.input, [1], rows=ROWS)
    run(home, **QUICK)
    result = by_hand([])
    result.take([*[PUT_ASIDE] * ROWS, *_in_order(1)])
    assert_as_by_hand(home.config(), result)


@pytest.mark.parametrize(
    ("column", "kind", "convert"),
    [
        ("cents", pa.string(), str),
        ("customer", pa.int64(), lambda _: 7),
        ("at", pa.string(), str),
        ("item", pa.binary(), str.encode),
        ("kind", pa.int32(), lambda _: 1),
        ("cents", pa.float64(), lambda cents: cents + 0.5),
        ("cents", pa.list_(pa.int32()), lambda cents: [cents]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType | str) else "",
)
def test_column_of_wrong_type_sets_rows_aside(home, run, column, kind, convert):
    write_days(home.input, [0], rows=ROWS)
    rows = [{**row, column: None if row[column] is None else convert(row[column])} for row in rows_of(1)]
    schema = SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, kind))
    spoilt = [row for row in rows if row[column] is not None]
    write_rows(home.input, day_name(1), spoilt, schema)
    configure(home, max_quarantined="none")
    run(home, **QUICK)
    result = by_hand([])
    result.take([*_in_order(0), *[PUT_ASIDE] * len(spoilt)])
    assert_as_by_hand(home.config(), result)
    bad = quarantined(home)
    assert len(bad) == len(spoilt)
    assert all(column in row["error"] for row in bad)


def test_text_not_in_utf_8_stops_no_job(home, run):
    rows = rows_of(0)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    raw = pa.array([b"\xff\xfe" if number == 3 else b"fine" for number in range(ROWS)], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), ROWS, raw.buffers())
    path = home.input / day_name(0)
    pq.write_table(table.set_column(table.schema.get_field_index("note"), "note", broken), path)
    run(home, **QUICK)
    (bad,) = quarantined(home)
    assert bad["position"] == f"{day_name(0)}:3"
    assert bad["error"] == r"note is '\\xff\\xfe', which is not UTF-8"
    assert r'"note":"\\xff\\xfe"' in bad["raw"]


def test_rows_that_come_twice_are_two_rows(home, run):
    rows = rows_of(0)
    twice = [row for row in rows for _ in range(2)]
    write_rows(home.input, day_name(0), twice)
    run(home, **QUICK)
    assert_as_by_hand(home.config(), expected(twice))


@pytest.mark.slow
def test_megabyte_row_is_processed_and_quarantined(home, run):
    rows = rows_of(0)
    rows[3] |= {"note": "x" * 1_000_000}
    rows[4] |= {"note": "y" * 1_000_000, "customer": None}
    rows[5] |= {"customer": "z" * 1_000_000}
    write_rows(home.input, day_name(0), rows)
    run(home, parallelism=2, backend="rocksdb")
    assert_as_by_hand(home.config(), expected(rows))
    assert max(len(row["raw"]) for row in all_quarantined(home)) > 1_000_000


def far_future(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "at": 253_402_300_800_000}  # the year 10000, which Python's datetime does not know


def before_christ(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "at": -99_999_999_999_999}


@pytest.mark.parametrize("timestamp", [far_future, before_christ], ids=lambda timestamp: timestamp.__name__)
def test_time_beyond_the_calendar_stops_no_job(home, run, timestamp: Callable[[Any], Any]):
    rows = rows_of(0)
    table = pa.Table.from_pylist(
        [{**row, "at": timestamp(row)["at"] if n == 7 else row["at"]} for n, row in enumerate(rows)],
        schema=_with_numbers(),
    )
    column = SCHEMA.get_field_index("at")
    times = table["at"].cast(pa.timestamp("ms", tz="UTC"))
    pq.write_table(table.set_column(column, "at", times), home.input / day_name(0))
    run(home, **QUICK)
    write_days(home.input, [1], rows=ROWS)
    run(home, **QUICK)
    assert checkpoints(home.config())[-1].checkpoint_id == 2
    (bad,) = quarantined(home)
    assert bad["error"].endswith("which is outside the years 1 to 9999")


def _with_numbers() -> pa.Schema:
    return SCHEMA.set(SCHEMA.get_field_index("at"), pa.field("at", pa.int64()))


@pytest.mark.slow
def test_redelivered_flight_event_changes_nothing(flights, run, flight_files, tmp_path):
    home = flights(1)
    run(home, **QUICK)
    once = outcome(home.config())
    again = Home(tmp_path / "again", home._job)
    table = pq.ParquetFile(flight_files(1) / "2013-01-01.parquet").read()
    # Each row is followed by a copy of itself. The bucket is twice as long, so the watermark advances as before.
    twice = table.take(pa.array([row for row in range(table.num_rows) for _ in range(2)]))
    pq.write_table(twice, again.input / "2013-01-01.parquet")
    again.configure({"watermark": {"bucket": 2000}})
    run(again, **QUICK)
    assert outcome(again.config()).sinks == once.sinks
