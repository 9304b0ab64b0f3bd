"""Tasks in worker processes: the same results, even after a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import msgspec
import psutil
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import crash_points
from headrace.errors import ClusterError, EngineBug, StorageError, UserFunctionError
from headrace.local import worker
from headrace.local.runner import TasksHere
from headrace.local.tasks import LocalTasks
from headrace.local.worker import answered
from headrace.local.workers import KeyedWork, SourceWork, Workers
from headrace.records.columns import sink_schema, to_columns
from headrace.run.job_run import run_on
from headrace.run.messages import TransitFile, encode_report
from headrace.run.options import RunOptions
from tests.jobs.graphs import Event, Program, job_of
from tests.jobs.home import Home
from tests.jobs.local_runs import IN_WORKERS, LocalRuns
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome
from tests.jobs.purchase_files import day_name, purchases_of, write_days, write_rows
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand
from tests.unit.support.fuzzing import examples

ROWS = 300


@pytest.fixture
def home(tmp_path):
    result = Home(tmp_path)
    write_days(result.input, [0], rows=ROWS)
    return result


@pytest.fixture
def run():
    return LocalRuns(IN_WORKERS)


@pytest.fixture(scope="module")
def workers():
    result = Workers(2)
    yield result
    result.close()


def run_in(workers, home, **options):
    tasks = TasksHere(workers, IN_WORKERS)
    return run_on(tasks, home.config(), RunOptions(run_id="test", **options), lambda _: None)


def pids():
    """The worker processes of this process."""
    mine = psutil.Process().children()
    return {child.pid for child in mine if "headrace.local.worker" in " ".join(child.cmdline())}


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_workers_change_no_result(home, workers, parallelism):
    run_in(workers, home, parallelism=parallelism)
    assert_as_by_hand(home.config(), by_hand([purchases_of(0, rows=ROWS)]))
    assert_well_formed(home.config())


@pytest.mark.slow
def test_workers_start_when_a_run_is_large(home):
    write_days(home.input, [0, 1, 2], rows=ROWS)
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    workers, before = Workers(2), pids()
    started = []
    try:
        tasks = TasksHere(workers, 2 * ROWS)
        run_on(tasks, home.config(), RunOptions(run_id="test"), lambda _: started.append(pids() > before))
    finally:
        workers.close()
    assert started == sorted(started)
    assert not started[0]
    assert started[-1]
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(3)))


@pytest.mark.slow
def test_killed_worker_repeats_only_its_task(home, run, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_KILL_AT", "task.half")
    monkeypatch.setenv("HEADRACE_KILL_ONCE", str(tmp_path / "killed"))
    before = pids()
    assert run(home, parallelism=2).stopped_because == "drained"
    assert (tmp_path / "killed").exists()
    assert pids() == before
    assert_as_by_hand(home.config(), by_hand([purchases_of(0, rows=ROWS)]))


@pytest.mark.slow
def test_always_dying_workers_end_the_run(home, run, workers, monkeypatch):
    monkeypatch.setenv("HEADRACE_KILL_AT", "task.half")
    with pytest.raises(ClusterError, match="died 4 times in the tasks of 'customers', the last one with exit code -9"):
        run(home, parallelism=1)
    monkeypatch.delenv("HEADRACE_KILL_AT")
    run_in(workers, home)
    assert_as_by_hand(home.config(), by_hand([purchases_of(0, rows=ROWS)]))


def test_user_errors_come_from_workers(home, workers):
    write_rows(home.input, day_name(1), [{**purchases_of(1)[0], "kind": "+I", "customer": "one", "note": "explode"}])
    with pytest.raises(UserFunctionError, match="operator 'customers'.*key \"one\""):
        run_in(workers, home)
    assert [checkpoint.checkpoint_id for checkpoint in checkpoints(home.config())] == [0]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sigterm_makes_workers_hold_remaining_records(home, workers, parallelism):
    home.configure({"execution": {"async-state": {"in-flight-records-limit": 5}}})

    def end(place):
        if place == "ingest.after":
            os.kill(os.getpid(), signal.SIGTERM)

    with crash_points.observed(end):
        report = run_in(workers, home, parallelism=parallelism)
    assert report.stopped_because == "terminated"
    assert checkpoints(home.config())[-1].work.held
    run_in(workers, home)
    assert_as_by_hand(home.config(), by_hand([purchases_of(0, rows=ROWS)]))


def test_workers_ignore_signals_of_their_group(home, workers):
    run_in(workers, home)
    before = pids()
    for pid in before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    write_days(home.input, [1])
    run_in(workers, home)
    assert pids() == before


def test_worker_ends_with_its_run():
    line = [sys.executable, "-c", "from headrace.local.worker import main; main()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdin.close()
        assert worker.wait(timeout=300) == 0


def keyed_work(home, transit):
    """The work of the first keyed stage over files."""
    seen = []

    class Noted(LocalTasks):
        def keyed(self, task, files):
            seen.append(task)
            return LocalTasks.keyed(task, files)

    run_on(Noted(), home.config(), RunOptions(run_id="noted"), lambda _: None)
    return KeyedWork("customers", 1, msgspec.Raw(encode_report(seen[0])), transit)


def test_storage_error_is_in_the_report(home):
    report = answered(keyed_work(home, (TransitFile(path=str(home.folder / "gone.arrows"), ends=[0, 8], rows=[0, 1]),)))
    assert (report.task, report.error_class) == (1, StorageError.__name__)
    assert "storage refused tasks of 'customers'" in report.error


def test_bug_is_in_the_report_with_its_traceback():
    report = answered(SourceWork("orders", 3, msgspec.Raw(b"{}")))
    assert (report.task, report.error_class) == (3, EngineBug.__name__)
    assert "a task of 'orders' failed:\nTraceback" in report.error


def test_exit_of_user_code_ends_no_worker(monkeypatch):
    monkeypatch.setattr(worker, "_run", lambda _: sys.exit(0))
    report = answered(SourceWork("orders", 3, msgspec.Raw(b"{}")))
    assert (report.task, report.error_class) == (3, UserFunctionError.__name__)
    assert "SystemExit: 0" in report.error


def fed_home(program, folder):
    home = Home(folder, job_of(program))
    for source in program.inputs:
        (home.input / source.name).mkdir(parents=True)
        for number, records in enumerate(source.files):
            if records:
                table = to_columns(records, sink_schema(Event))
                pq.write_table(table, home.input / source.name / f"{number:03d}.parquet")
    return home


@examples(2)
@given(seed=st.integers(0, 1 << 32))
def test_graphs_in_workers_equal_graphs_in_process(seed, workers, tmp_path_factory):
    program, chance = Program(seed), random.Random(seed)
    folder = tmp_path_factory.mktemp("graph")
    here, there = fed_home(program, folder / "here"), fed_home(program, folder / "there")
    LocalRuns()(here, parallelism=chance.choice([1, 2, 3]), end_of_input=True)
    run_in(workers, there, parallelism=chance.choice([1, 2, 3]), end_of_input=True)
    assert outcome(there.config()) == outcome(here.config())
