"""The check of the job: it agrees with the job's function, and detects errors."""

from __future__ import annotations

from collections import Counter
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.flights.events import write_events
from pipelines.flights.raw_data import data_folder
from pipelines.flights.records import BoardRow, HourlyDepartures, OverdueAlert
from pipelines.flights.verify import main, verify
from tests.unit.flights.conftest import simulate, table_of, write_raw

HOUR = 3_600_000


class Case:
    def __init__(self, folder, seed, *, first, days, flights=400, step=HOUR, through=None):
        self.raw = write_raw(folder / "raw", seed, first=first, days=days, flights=flights)
        self.dates = (first, date(2013, 12, 31))
        self.through = through
        write_events(folder / "events", first=first, last=self.dates[1], seed=seed, raw=self.raw, through=through)
        simulation = simulate(folder / "events", self.raw, step=step)
        self.watermark = simulation.watermark
        self.board = table_of(simulation.board().values(), BoardRow)
        self.alerts = table_of(simulation.alerts, OverdueAlert)
        self.departures = table_of(departures(folder / "events"), HourlyDepartures)

    def verify(self, board=None, alerts=None, departures=None):
        return verify(
            self.board if board is None else board,
            self.alerts if alerts is None else alerts,
            self.departures if departures is None else departures,
            self.dates,
            self.watermark,
            through=self.through,
            raw=self.raw,
        )


def departures(folder):
    """The departures of each airport and hour, an event delivered twice counted once."""
    rows = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]).to_pylist()
    left = {row["flight_id"]: row for row in rows if row["event"] == "departed" and row["kind"] == "+U"}
    hours = Counter((row["origin"], round(row["departure"].timestamp() * 1000) // HOUR * HOUR) for row in left.values())
    return [HourlyDepartures(origin, hour, count) for (origin, hour), count in hours.items()]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case(tmp_path_factory.mktemp("case"), 1, first=date(2013, 3, 6), days=8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("first", [date(2013, 3, 6), date(2013, 10, 30)])
def test_sets_and_function_agree_on_troubled_flights(seed, first, tmp_path):
    case = Case(tmp_path, seed, first=first, days=8, step=[0, HOUR, 5 * HOUR, 50 * HOUR][seed])
    assert case.alerts.num_rows > 50
    assert str(case.verify()).count("as expected") == 3, f"seed {seed}: {case.verify()}"


def test_sets_and_function_agree_half_way(tmp_path):
    case = Case(tmp_path, 3, first=date(2013, 3, 6), days=8, through=date(2013, 3, 9))
    assert {"scheduled", "departed", "arrived"} == set(case.board["status"].to_pylist())
    assert case.verify().total == 0


def test_changed_value_is_found(case):
    delays = case.board["expected_delay_minutes"]
    plus_one = case.board.set_column(
        case.board.schema.get_field_index("expected_delay_minutes"), "expected_delay_minutes", pc.add(delays, 1)
    )
    differences = case.verify(board=plus_one).board
    assert differences.different == len(delays) - delays.null_count
    assert differences.by_column == {"expected_delay_minutes": differences.different}
    must, actual = differences.different_examples[0].columns["expected_delay_minutes"]
    assert actual == must + 1


def test_wrong_count_of_an_hour_is_found(case):
    plus_one = case.departures.set_column(2, "departures", pc.add(case.departures["departures"], 1))
    differences = case.verify(departures=plus_one).departures
    assert (differences.different, differences.missing) == (case.departures.num_rows, 0)


def test_missing_row_is_found(case):
    differences = case.verify(board=case.board.slice(3)).board
    assert (differences.missing, differences.unexpected, differences.different) == (3, 0, 0)
    assert len(differences.missing_examples) == 3


def test_duplicated_row_is_found(case):
    differences = case.verify(alerts=pa.concat_tables([case.alerts, case.alerts.slice(0, 2)])).alerts
    assert (differences.missing, differences.unexpected, differences.different) == (0, 2, 0)


def test_null_in_place_of_value_is_found(case):
    nothing = pa.nulls(case.board.num_rows, pa.float64())
    board = case.board.set_column(case.board.schema.get_field_index("temp"), "temp", nothing)
    assert case.verify(board=board).board.by_column.keys() == {"temp"}


def test_no_more_than_ten_examples_are_given(case):
    differences = case.verify(board=case.board.slice(0, 0)).board
    assert differences.missing == case.board.num_rows
    assert len(differences.missing_examples) == 10


def test_alert_before_its_time_is_found(case):
    differences = verify(case.board, case.alerts, case.departures, case.dates, 0, raw=case.raw).alerts
    assert differences.unexpected > 0
    assert differences.missing == differences.different == 0


def test_table_without_a_column_is_refused(case):
    with pytest.raises(ValueError, match="no column temp"):
        case.verify(board=case.board.drop_columns(["temp"]))


def test_command_line_reads_delta_tables(case, tmp_path, monkeypatch, capsys):
    deltalake = pytest.importorskip("deltalake")
    monkeypatch.setattr("pipelines.flights.verify.data_folder", lambda: case.raw)
    instant = pa.timestamp("us", tz="UTC")
    for name, table in {"board": case.board, "alerts": case.alerts, "departures": case.departures}.items():
        columns = {
            field.name: table[field.name].cast(pa.timestamp("ms", tz="UTC")).cast(instant)
            if field.name in {"departure", "arrival", "deadline", "scheduled_departure", "scheduled_arrival", "hour"}
            else table[field.name]
            for field in table.schema
        }
        deltalake.write_deltalake(str(tmp_path / name), pa.table(columns))
    given = ["--board", str(tmp_path / "board"), "--alerts", str(tmp_path / "alerts"), "--from", "2013-03-06"]
    given += ["--departures", str(tmp_path / "departures"), "--to", "2013-12-31", "--watermark"]
    assert main([*given, str(case.watermark)]) == 0
    assert main([*given, "0"]) == 1
    assert "alerts: " in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    "days",
    [
        (date(2013, 2, 6), date(2013, 2, 11)),  # a blizzard: most flights are cancelled
        (date(2013, 3, 8), date(2013, 3, 12)),  # clocks go forward
        (date(2013, 11, 1), date(2013, 11, 4)),  # and back
        (date(2013, 12, 29), date(2013, 12, 31)),  # the end of the tables
    ],
)
def test_sets_and_function_agree_on_real_flights(tmp_path, days):
    write_events(tmp_path, first=days[0], last=days[1], seed=13)
    simulation = simulate(tmp_path, data_folder(), step=5 * HOUR)
    board, alerts = table_of(simulation.board().values(), BoardRow), table_of(simulation.alerts, OverdueAlert)
    assert board.num_rows > 2000
    left = table_of(departures(tmp_path), HourlyDepartures)
    assert verify(board, alerts, left, days, simulation.watermark).total == 0
