"""Services, disks, configuration and user code fail: the error is clear, and the next run recovers."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.errors import ConfigError, HeadraceError, SinkMismatchError, StorageError, UserFunctionError
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome, when_due
from tests.jobs.purchase_files import day_name, purchases_of, write_days, write_rows
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

QUICK: dict[str, Any] = {"parallelism": 1, "backend": "rocksdb"}
ONE_BY_ONE = {"sources": {"purchases": {"max_files_per_batch": 1}}}


@pytest.fixture
def half_way(home, run) -> Home:
    """A job with the first of two days taken in."""
    home.configure(ONE_BY_ONE)
    write_days(home.input, [0])
    run(home, **QUICK)
    write_days(home.input, [1])
    return home


def assert_finished(home: Home, run) -> None:
    """Run to the end, and compare with two undisturbed days."""
    run(home, **QUICK)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(2))))


def assert_fails_without_a_trace(home: Home, run, error: type[HeadraceError], code: int, match: str) -> None:
    before, state = checkpoints(home.config()), outcome(home.config())
    with pytest.raises(error, match=match) as caught:
        run(home, **QUICK)
    assert caught.value.exit_code == code
    assert checkpoints(home.config()) == before
    assert outcome(home.config()) == state


# ------------------------------------------------------------------------------------------------- user code


def test_raising_user_function_names_key_and_record(half_way, run):
    rows = purchases_of(1)
    rows[50] |= {"note": "explode", "customer": "unlucky", "kind": "+I"}
    write_rows(half_way.input, day_name(1), rows)
    output = '(?s)operator \'customers\', key "unlucky", record .*"seq":1000050.*a purchase that explodes'
    assert_fails_without_a_trace(half_way, run, UserFunctionError, 5, output)
    write_days(half_way.input, [1])
    assert_finished(half_way, run)


# --------------------------------------------------------------------------------------------------- services


@pytest.fixture
def impatient_flights(flights) -> Home:
    """Return the first day of the flights, with one second for all attempts of a call."""
    home = flights(1)
    config = home.config().sources["flight_events"]
    home.configure({"sources": {"flight_events": {"path": config.path}}, "async_io": {"weather": {"timeout": "1s"}}})
    return home


@pytest.mark.slow
def test_unanswered_elements_wait_for_a_dead_service(impatient_flights, run, monkeypatch, weather):
    home = impatient_flights
    monkeypatch.setenv("WEATHER_URL", "http://127.0.0.1:9")
    run(home, **QUICK)
    assert pending(home) > 0
    assert outcome(home.config()).sinks["flight_board"] == []
    monkeypatch.setenv("WEATHER_URL", weather)
    home.configure({"sources": {"flight_events": {"path": home.config().sources["flight_events"].path}}})
    while pending(home):
        when_due(home.config())
        run(home, **QUICK)
    assert_well_formed(home.config())
    assert len(outcome(home.config()).sinks["flight_board"]) > 500


def pending(home: Home) -> int:
    return checkpoints(home.config())[-1].work.pending


def test_nonsense_answer_is_not_retried(impatient_flights, run, monkeypatch, weather):
    # The service's page of statistics represents any address that answers 200 with something else.
    monkeypatch.setenv("WEATHER_URL", f"{weather}/statistics")
    with pytest.raises(UserFunctionError, match="(?s)operator 'weather'.*WeatherRefusedError"):
        run(impatient_flights, **QUICK)


# ---------------------------------------------------------------------------------------------- configuration


def test_unknown_key_error_has_its_line(half_way):
    half_way.configure({"run": {"bugdet": "5m"}})
    with pytest.raises(ConfigError, match=r"purchases\.yaml:\d+.*bugdet") as caught:
        half_way.config()
    assert caught.value.exit_code == 2


@pytest.mark.slow
def test_changed_number_of_key_groups_is_refused(half_way, run):
    half_way.configure({"max_parallelism": 64} | ONE_BY_ONE)
    assert_fails_without_a_trace(half_way, run, ConfigError, 2, "the state has 128 key groups, not 64")
    half_way.configure(ONE_BY_ONE)
    assert_finished(half_way, run)


# ------------------------------------------------------------------------------------------------------ disks


@pytest.mark.parametrize("table", ["keyed_state", "timers", "materializer_history"])
def test_missing_state_table_is_named(half_way, run, table):
    folder = Path(half_way.config().job_folder) / table
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(StorageError, match=rf"{table} is gone, but checkpoints name its version 1") as caught:
        run(half_way, **QUICK)
    assert caught.value.exit_code == 8
    folder.with_name("elsewhere").rename(folder)
    assert_finished(half_way, run)


def test_state_table_from_old_backup_is_refused(half_way, run):
    folder = Path(half_way.config().job_folder) / "keyed_state"
    shutil.copytree(folder, folder.with_name("newest"))
    newest = folder / "_delta_log" / f"{1:020}.json"
    newest.unlink()
    with pytest.raises(StorageError, match="is at version 0, but checkpoints name 1"):
        run(half_way, **QUICK)
    shutil.rmtree(folder)
    folder.with_name("newest").rename(folder)
    assert_finished(half_way, run)


def test_job_without_its_checkpoints_does_not_restart(half_way, run):
    folder, lake = Path(half_way.config().job_folder) / "checkpoints", half_way.folder / "lake"
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(SinkMismatchError, match="has no checkpoints"):
        run(half_way, **QUICK)
    lake.rename(half_way.folder / "lake_elsewhere")
    with pytest.raises(StorageError, match="holds state, but the job's checkpoints are gone"):
        run(half_way, **QUICK)
    assert not lake.exists()
    shutil.rmtree(folder)
    folder.with_name("elsewhere").rename(folder)
    (half_way.folder / "lake_elsewhere").rename(lake)
    assert_finished(half_way, run)


def test_missing_state_file_is_named_when_needed(half_way, run):
    # The local copies still have its entries; without the copies the job would miss them.
    shutil.rmtree(half_way.config().local_folder)
    files = list((Path(half_way.config().job_folder) / "keyed_state").glob("*-customers-*.parquet"))
    for file in files:
        file.rename(file.with_suffix(".lost"))
    with pytest.raises(StorageError, match="keyed_state/.* is gone"):
        run(half_way, **QUICK)
    for file in files:
        file.with_suffix(".lost").rename(file)
    assert_finished(half_way, run)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small file system, which root can fill or make read-only."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


def seal(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def unfill(disk: Path) -> None:
    (disk / "filling").unlink()


def unseal(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


FULL, READ_ONLY = (fill, unfill), (seal, unseal)
TROUBLES = [pytest.param(*FULL, id="full"), pytest.param(*READ_ONLY, id="read-only")]
PLACES = {"state": {"state": {"root": "disk"}}, "local copies": {"state": {"local": "disk"}}}


@pytest.mark.parametrize(("spoil", "repair"), TROUBLES)
@pytest.mark.parametrize("place", PLACES)
def test_disk_error_fails_run_and_loses_nothing(home, run, place, spoil, repair):
    home.configure(ONE_BY_ONE | PLACES[place])
    write_days(home.input, [0])
    with small_disk(home.folder / "disk", "4m") as disk:
        run(home, **QUICK)
        write_days(home.input, [1])
        spoil(disk)
        assert_fails_without_a_trace(home, run, StorageError, 8, str(disk))
        repair(disk)
        assert_finished(home, run)


# The simulation refuses any step of the storage; here a real disk does, in each of two ways.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("timestamp", "spoil", "repair"),
    [
        pytest.param("prepare.before", *FULL, id="prepare.before-full"),
        pytest.param("prepare.half", *FULL, id="prepare.half-full"),
        pytest.param("commit.before", *READ_ONLY, id="commit.before-read-only"),
    ],
)
def test_disk_error_during_commit_loses_nothing(home, run, monkeypatch, timestamp, spoil, repair):
    home.configure(ONE_BY_ONE | PLACES["state"])
    write_days(home.input, [0])
    with small_disk(home.folder / "disk", "4m") as disk:
        run(home, **QUICK)
        write_days(home.input, [1])
        with monkeypatch.context() as patched:
            patched.setattr(crash_points, "reached", once(timestamp, lambda: spoil(disk)))
            assert_fails_without_a_trace(home, run, StorageError, 8, str(disk))
        repair(disk)
        assert_finished(home, run)


@pytest.mark.parametrize(
    ("timestamp", "visit", "spoil", "repair"),
    [
        pytest.param("commit.after", 1, *READ_ONLY, id="commit.after-read-only"),
        pytest.param("publish.half", 2, *FULL, id="publish.half-full"),
    ],
)
def test_sink_with_write_error_gets_rows_later(home, run, monkeypatch, timestamp, visit, spoil, repair):
    sinks = {"lines_by_item": {"path": "disk/lines"}, "reminders": {"path": "disk/reminders"}}
    home.configure(ONE_BY_ONE | {"sinks": sinks})
    write_days(home.input, [0])
    with small_disk(home.folder / "disk", "4m") as disk:
        run(home, **QUICK)
        write_days(home.input, [1])
        with monkeypatch.context() as patched:
            patched.setattr(crash_points, "reached", once(timestamp, lambda: spoil(disk), visit=visit))
            with pytest.raises(StorageError, match=str(disk)):
                run(home, **QUICK)
        assert checkpoints(home.config())[-1].checkpoint_id == 2
        repair(disk)
        with open_job(home.config(), "repair"):
            pass
        assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(2))))


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "repair"), [pytest.param(*FULL, id="full", marks=pytest.mark.long), TROUBLES[1]])
def test_sink_refusing_sparks_merge_gets_rows_later(home, run, monkeypatch, spoil, repair):
    sinks = {"lines_by_item": {"path": "disk/lines"}, "reminders": {"path": "lake/reminders"}}
    home.configure(ONE_BY_ONE | {"sinks": sinks, "publish": {"spark_above_rows": 0}})
    write_days(home.input, [0])
    with small_disk(home.folder / "disk", "4m") as disk:
        run(home, **QUICK)
        write_days(home.input, [1])
        with monkeypatch.context() as patched:
            patched.setattr(crash_points, "reached", once("commit.after", lambda: spoil(disk)))
            with pytest.raises(StorageError, match="storage refused checkpoint 2 in sink 'lines_by_item'") as caught:
                run(home, **QUICK)
        assert caught.value.exit_code == 8
        repair(disk)
        assert_finished(home, run)


def once(place: str, action: Callable[[], None], *, visit: int = 1) -> Callable[[str], None]:
    """Do `action` at one visit of the run to `place`; the opening of a job visits those of publishing."""
    visits = itertools.count(1)

    def reached(where: str) -> None:
        if where == place and next(visits) == visit:
            action()

    return reached


def test_impossible_local_folder_is_named(home, run):
    (home.folder / "local").write_text("a file is in its place")
    write_days(home.input, [0])
    with pytest.raises(StorageError, match="local state in .*could not be written"):
        run(home, **QUICK)
    (home.folder / "local").unlink()
    run(home, **QUICK)
    assert_as_by_hand(home.config(), by_hand([purchases_of(0)]))
