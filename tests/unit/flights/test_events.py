"""The changelog of flights: complete, disordered within bounds, and the same for the same seed."""

from __future__ import annotations

from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.flights.events import DAY, Changelog, deliver, main, write_events
from pipelines.flights.flight_times import load_flights, next_clock_reading
from tests.unit.flights.conftest import write_raw

FIRST, LAST = date(2013, 3, 6), date(2013, 3, 13)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("raw"), seed=1, first=FIRST, days=8, flights=2_000)


@pytest.fixture(scope="module")
def folder(raw, tmp_path_factory):
    out = tmp_path_factory.mktemp("events")
    write_events(out, first=FIRST, last=LAST, seed=13, raw=raw)
    return out


@pytest.fixture(scope="module")
def rows(folder):
    tables = [pq.read_table(path) for path in sorted(folder.iterdir())]
    frame = pa.concat_tables(tables).to_pandas()
    frame["file"] = np.repeat([path.stem for path in sorted(folder.iterdir())], [len(table) for table in tables])
    return frame


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_flight_has_valid_event_order(rows):
    valid = {
        "+I",
        "+I -D",
        "+I -U +U",
        "+I -U +U -U +U",
    }
    once = rows.drop_duplicates("seq").sort_values("seq")
    assert set(once.groupby("flight_id")["kind"].agg(" ".join)) == valid - {"+I"}
    assert once["flight_id"].nunique() == 2_000


def test_seq_follows_emission_and_a_retraction_comes_first(rows):
    once = rows.drop_duplicates("seq").sort_values("seq")
    assert once["seq"].tolist() == list(range(1, len(once) + 1))
    keys = list(zip(once["emitted_at"], once["flight_id"], [kind != "-U" for kind in once["kind"]], strict=True))
    assert keys == sorted(keys)


def test_row_shows_flight_before_or_after_its_event(rows):
    departed = rows[rows["event"] == "departed"]
    arrived = rows[rows["event"] == "arrived"]
    assert (departed["departure"].notna() == (departed["kind"] == "+U")).all()
    assert (arrived["arrival"].notna() == (arrived["kind"] == "+U")).all()
    assert arrived["departure"].notna().all()


def test_arrival_is_after_its_departure(rows):
    landed = rows[rows["arrival"].notna()]
    assert (landed["arrival"] > landed["departure"]).all()
    assert (rows["scheduled_arrival"] > rows["scheduled_departure"]).all()


def test_about_one_percent_of_rows_are_delivered_twice(rows):
    again = rows.duplicated("seq").sum()
    assert 0.005 < again / len(rows) < 0.02
    assert rows.groupby("seq").size().max() == 2


def test_first_delivery_is_in_its_days_file(rows):
    first = rows.drop_duplicates("seq")
    assert (first["emitted_at"].dt.strftime("%Y-%m-%d") == first["file"]).all()


def test_disorder_stays_below_five_minutes(rows):
    behind = rows["emitted_at"].groupby(rows["file"]).cummax() - rows["emitted_at"]
    assert 60 < behind.max().total_seconds() < 300


def test_second_delivery_after_midnight_is_in_next_file():
    #  a million rows one second before midnight: some ten thousand second deliveries, nearly all of them after it
    count = 1_000_000
    numbers = np.arange(count)
    nothing = np.zeros(count, dtype=np.int64)
    before_midnight = np.full(count, 10 * DAY - 1_000)
    delivered = deliver(Changelog(numbers, nothing, nothing, before_midnight, numbers, nothing), seed=1)
    assert (delivered.day == 9).sum() >= count
    assert (delivered.day == 10).sum() > 9_000
    late = delivered.at - 10 * DAY + 1_000
    assert late.min() >= 0
    assert late.max() < 300_000


def test_same_seed_writes_the_same_bytes(raw, folder, tmp_path):
    write_events(tmp_path, first=FIRST, last=LAST, seed=13, raw=raw)
    assert content(tmp_path) == content(folder)


def test_another_seed_changes_the_disorder_only(raw, folder, tmp_path):
    write_events(tmp_path, first=FIRST, last=LAST, seed=14, raw=raw)
    assert content(tmp_path) != content(folder)
    one, other = (
        {row["seq"]: row for path in out.iterdir() for row in pq.read_table(path).to_pylist()}
        for out in (folder, tmp_path)
    )
    assert one == other


def test_partial_deliveries_equal_one_delivery(raw, folder, tmp_path):
    part = write_events(tmp_path, first=FIRST, last=LAST, seed=13, raw=raw, through=date(2013, 3, 8))
    assert {path.stem for path in tmp_path.iterdir()} == {"2013-03-06", "2013-03-07", "2013-03-08"}
    rest = write_events(tmp_path, first=FIRST, last=LAST, seed=13, raw=raw)
    assert rest.left_alone == part.files == 3
    assert content(tmp_path) == content(folder)


def test_existing_file_is_not_rewritten(raw, tmp_path):
    (tmp_path / "2013-03-07.parquet").write_text("mine")
    write_events(tmp_path, first=FIRST, last=LAST, seed=13, raw=raw)
    assert (tmp_path / "2013-03-07.parquet").read_text() == "mine"


def test_seq_and_disorder_are_independent_of_dates(raw, rows, tmp_path):
    write_events(tmp_path, first=date(2013, 3, 8), last=date(2013, 3, 9), seed=13, raw=raw)
    part = [(path.stem, seq) for path in sorted(tmp_path.iterdir()) for seq in pq.read_table(path)["seq"].to_pylist()]
    chosen = rows["flight_id"].str.slice(0, 10).isin(["2013-03-08", "2013-03-09"])
    assert part == list(zip(rows[chosen]["file"], rows[chosen]["seq"], strict=True))


def test_columns_have_the_documented_types(folder):
    schema = pq.read_schema(folder / "2013-03-08.parquet")
    assert schema.field("seq").type == pa.int64()
    assert schema.field("flight").type == schema.field("seats").type == pa.int32()
    assert schema.field("emitted_at").type == schema.field("arrival").type == pa.timestamp("ms", tz="UTC")
    assert schema.field("tailnum").nullable
    assert not schema.field("flight_id").nullable


def test_written_rows_are_counted(raw, rows, tmp_path):
    written = write_events(tmp_path, first=FIRST, last=LAST, seed=13, raw=raw)
    assert written.rows == len(rows)
    assert written.redelivered == rows.duplicated("seq").sum()


def minutes(text):
    return np.array([np.datetime64(text, "m").astype(np.int64)])


def reading(after, clock, standard, *, saves=True):
    result = next_clock_reading(minutes(after), np.array([clock]), np.array([standard]), np.array([saves]))
    return str(result.astype("datetime64[m]")[0])


def test_clock_reading_is_strictly_after_the_instant():
    assert reading("2013-01-01T12:00", 7 * 60, -5) == "2013-01-02T12:00"
    assert reading("2013-01-01T11:59", 7 * 60, -5) == "2013-01-01T12:00"


def test_daylight_saving_time_begins_between_departure_and_arrival():
    #  22:00 in New York on the 9th is 03:00 UTC; 05:00 in Chicago is by then UTC-5
    assert reading("2013-03-10T03:00", 5 * 60, -6) == "2013-03-10T10:00"
    assert reading("2013-03-10T03:00", 5 * 60, -6, saves=False) == "2013-03-10T11:00"


def test_first_of_equal_readings_counts_at_dst_end():
    """Two readings are equal when daylight saving time ends."""
    assert reading("2013-11-03T03:00", 90, -6) == "2013-11-03T06:30"
    assert reading("2013-11-03T06:30", 90, -6) == "2013-11-03T07:30"


def test_departures_that_contradict_the_stated_hour_are_refused(tmp_path):
    raw = write_raw(tmp_path, seed=1, first=date(2013, 7, 1), days=1, flights=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.flights.flight_times.NEW_YORK", -6)
        with pytest.raises(ValueError, match="time_hour"):
            load_flights(raw)


def test_command_line_prints_the_written_files(raw, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipelines.flights.events.data_folder", lambda: raw)
    main(["--out", str(tmp_path), "--year", "--through", "2013-03-07"])
    message = capsys.readouterr().out
    assert message.startswith("flights of 2013-01-01 to 2013-12-31: wrote ")
    assert message.count("\n") == 1
