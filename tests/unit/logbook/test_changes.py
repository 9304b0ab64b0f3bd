"""The three changelogs: the same for the same seed, complete at the end, and disordered in between."""

from __future__ import annotations

from collections import Counter
from datetime import date

import pyarrow.parquet as pq
import pytest

from pipelines.logbook.changes import SOURCES, entry_changes, main, plane_changes, report_changes, write_changes
from tests.jobs.logbook_days import LAST, TROUBLE

DAY_ONE = date(2013, 1, 1)
KEYS = {"entries": ("flight_id",), "planes": ("tailnum",), "weather": ("origin", "hour")}


def rows_of(folder):
    return {
        (name, path.name): pq.read_table(path).to_pylist() for name in SOURCES for path in (folder / name).iterdir()
    }


def all_changes(raw, seed):
    return {
        "entries": list(entry_changes(raw, LAST, seed, TROUBLE)),
        "planes": list(plane_changes(raw, seed, TROUBLE)),
        "weather": list(report_changes(raw, LAST, seed, TROUBLE)),
    }


def test_equal_seeds_write_equal_files(tmp_path, raw):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_changes(tmp_path / name, last=LAST, seed=seed, raw=raw)
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    assert rows_of(tmp_path / "a") != rows_of(tmp_path / "c")


def test_later_call_writes_the_rest(tmp_path, raw):
    whole = write_changes(tmp_path / "whole", last=LAST, seed=1, raw=raw)
    first = write_changes(tmp_path / "parts", last=LAST, seed=1, raw=raw, through=DAY_ONE)
    assert {path.name for path in (tmp_path / "parts/entries").iterdir()} == {"2013-01-01.parquet"}
    rest = write_changes(tmp_path / "parts", last=LAST, seed=1, raw=raw)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    assert {name: first[name] + rest[name] for name in SOURCES} == whole


def test_day_without_changes_has_a_file(tmp_path, raw):
    write_changes(tmp_path, last=LAST, seed=1, raw=raw)
    files = [{path.name for path in (tmp_path / name).iterdir()} for name in SOURCES]
    assert files[0] == files[1] == files[2]
    assert any(not rows for rows in rows_of(tmp_path).values())


def test_flight_changes_do_not_depend_on_dates(raw):
    shorter = [*entry_changes(raw, DAY_ONE, 1, TROUBLE)]
    assert shorter == [*entry_changes(raw, LAST, 1, TROUBLE)][: len(shorter)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SOURCES)
def test_each_retraction_follows_its_row(raw, seed, name):
    in_force = Counter()
    late = 0
    newest = {}
    for change in sorted(all_changes(raw, seed)[name], key=lambda change: change.delivered_at):
        key = tuple(getattr(change.record, field) for field in KEYS[name])
        if change.kind.is_retraction:
            late += change.record.recorded_at < newest[key]
            assert in_force[change.record] == 1
            del in_force[change.record]
        else:
            assert change.record.recorded_at == change.delivered_at
            newest[key] = change.delivered_at
            in_force[change.record] += 1
    assert late > 0
    assert max(Counter(tuple(getattr(record, field) for field in KEYS[name]) for record in in_force).values()) == 1


def test_corrections_cover_every_kind_of_error(raw):
    by_flight = {}
    for change in entry_changes(raw, LAST, 1, TROUBLE):
        by_flight.setdefault(change.record.flight_id, []).append((change.delivered_at, change.kind))
    courses = {
        "".join(kind.symbol for _, kind in sorted(changes, key=lambda at: at[0])) for changes in by_flight.values()
    }
    assert {"+I", "+I-U+U", "+I+U-U", "+I+U+U-U-U", "+I-D"} <= courses


def test_command_prints_the_written_files(tmp_path, raw, monkeypatch, capsys):
    monkeypatch.setattr("pipelines.logbook.changes.data_folder", lambda: raw)
    main(["--out", str(tmp_path), "--to", "2013-01-01", "--through", "2013-01-01"])
    rows = sum(pq.read_metadata(path).num_rows for path in (tmp_path / "entries").iterdir())
    assert f"{rows} rows of entries" in capsys.readouterr().out
