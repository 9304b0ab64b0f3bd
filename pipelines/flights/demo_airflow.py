"""The Airflow of the demo: starts `setup/airflow.py`, and makes it run a job for some days."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from pipelines.flights.airflow_api import AirflowApi, ApiError, BusyError

T = TypeVar("T")

SCRIPT: Final = Path(__file__).resolve().parents[2] / "setup" / "airflow.py"

STARTS_WITHIN: Final = 600.0
RUN_ENDS_WITHIN: Final = 1800.0
ENDS_WITHIN: Final = 60.0
LOOK_EVERY: Final = 1.0
"""Seconds."""

FAILED: Final = frozenset({"failed", "upstream_failed"})


class StepFailedError(Exception):
    """A step of the demo failed; the message gives the reason, the log the details."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


class Result(msgspec.Struct):
    """The part of a run's report that the demo shows."""

    rows_in: int
    waiting: int
    checkpoint: int | None


class _XCom(msgspec.Struct):
    value: Result


class _Dag(msgspec.Struct):
    dag_id: str


class _Backfill(msgspec.Struct):
    id: int
    completed_at: str | None


class _Backfills(msgspec.Struct):
    backfills: list[_Backfill]


class _Run(msgspec.Struct):
    dag_run_id: str
    state: str


class _Runs(msgspec.Struct):
    dag_runs: list[_Run]


class _Task(msgspec.Struct):
    task_id: str
    state: str | None
    try_number: int
    duration: float | None


class _Tasks(msgspec.Struct):
    task_instances: list[_Task]


@dataclass
class Airflow:
    """A running Airflow. It writes its address to `ready_file` when it is ready; `say` gets sentences for the reader."""

    process: subprocess.Popen[bytes]
    log: Path
    ready_file: Path
    say: Callable[[str], None] = print
    url: str = field(default="", init=False)
    _is_busy: bool = field(default=False, init=False)

    def wait_until_ready(self, dag: str) -> None:
        """Wait until Airflow is ready and knows the DAG. Raises `StepFailedError` after ten minutes."""
        self._wait(self.ready_file.exists, STARTS_WITHIN, "Airflow is not ready")
        self.url = self.ready_file.read_text().strip()
        self._wait(lambda: self._knows(dag), STARTS_WITHIN, f"Airflow has no DAG {dag}")

    def start_backfill(self, dag: str, first: datetime, last: datetime) -> None:
        """Make Airflow run the DAG for the days `first` to `last`, one after the other; continue such a backfill if one is open.

        Raises `StepFailedError` when Airflow refuses it.
        """
        self._ask(lambda: self._api.patch(f"/dags/{dag}", {"is_paused": False}, _Dag))
        if self._has_open_backfill(dag):
            self._clear_failed(dag, first, last)
        self._wait(lambda: self._is_accepted(dag, first, last), STARTS_WITHIN, "Airflow accepts no backfill")

    def result_of(self, dag: str, day: datetime, last: datetime) -> tuple[Result, float]:
        """Wait for the task `run` of a day of the backfill up to `last`; return its result and its seconds.

        Raises `StepFailedError` if a task failed.
        """
        run = self._run_of(dag, day, last)
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/run"
        self._wait(lambda: self._state_of(dag, run, "run") == "success", RUN_ENDS_WITHIN, f"{run} has not ended")
        result = self._ask(lambda: self._api.get(f"{path}/xcomEntries/return_value", _XCom, deserialize="true"))
        return result.value, self._ask(lambda: self._api.get(path, _Task)).duration or 0.0

    def wait_for_success(self, dag: str, day: datetime) -> None:
        """Wait for the end of all tasks of a day. Raises `StepFailedError` if one failed."""
        run = self._run_of(dag, day, day)
        self._wait(lambda: self._state_of(dag, run, None) == "success", RUN_ENDS_WITHIN, f"{run} has not ended")

    def wait_for_end_of_backfill(self, dag: str) -> None:
        """Wait until Airflow has closed the backfill, up to half a minute after its last run: before that it refuses another backfill."""
        self._wait(lambda: not self._has_open_backfill(dag), RUN_ENDS_WITHIN, "Airflow does not close the backfill")

    @cached_property
    def _api(self) -> AirflowApi:
        passwords = Path(os.environ["AIRFLOW_HOME"]) / "simple_auth_manager_passwords.json.generated"
        password = json.loads(passwords.read_text())["admin"]
        return AirflowApi(self.url, password, say=self.say, check=self._check_runs)

    def _is_accepted(self, dag: str, first: datetime, last: datetime) -> bool:
        """Return whether Airflow has an open backfill with runs; ask for one if it has none.

        A backfill that was refused in the middle, or whose answer was lost, may be there, with runs or without. One
        without runs is of no use: Airflow closes it after two minutes.
        """
        if self._has_open_backfill(dag):
            return self._has_unfinished_runs(dag)
        days = {"from_date": first.isoformat(), "to_date": last.isoformat()}
        how = {"max_active_runs": 1, "reprocess_behavior": "completed"}
        try:
            self._api.post_once("/backfills", {"dag_id": dag, **days, **how}, msgspec.Raw)
        except BusyError as busy:
            if not self._is_busy:
                self.say(f"Airflow is busy, it is asked again ({busy})")
            self._is_busy = True
            return False
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:
                return False  # a backfill was made meanwhile
            raise StepFailedError(str(error), self.log) from None
        return True

    def _has_open_backfill(self, dag: str) -> bool:
        backfills = self._ask(lambda: self._api.get("/backfills", _Backfills, dag_id=dag, order_by="-id")).backfills
        return any(backfill.completed_at is None for backfill in backfills)

    def _has_unfinished_runs(self, dag: str) -> bool:
        path = f"/dags/{dag}/dagRuns"
        for state in ("queued", "running"):
            query = {"run_type": "backfill", "state": state}
            if self._ask(lambda query=query: self._api.get(path, _Runs, **query)).dag_runs:  # type: ignore[misc]
                return True
        return False

    def _clear_failed(self, dag: str, first: datetime, last: datetime) -> None:
        """Let tasks that failed in an earlier demo run again."""
        days = {"start_date": first.isoformat(), "end_date": last.isoformat()}
        body = {"dry_run": False, "only_failed": True, "reset_dag_runs": True, **days}
        self._ask(lambda: self._api.post(f"/dags/{dag}/clearTaskInstances", body, msgspec.Raw))

    def _run_of(self, dag: str, day: datetime, last: datetime) -> str:
        """Return the id of the DAG run of a day. If the backfill has ended without it, make a backfill of it and the days up to `last`."""
        wanted = {"logical_date_gte": day.isoformat(), "logical_date_lte": day.isoformat()}
        runs: list[_Run] = []

        def is_there() -> bool:
            runs[:] = self._ask(lambda: self._api.get(f"/dags/{dag}/dagRuns", _Runs, **wanted)).dag_runs
            if not runs and not self._has_open_backfill(dag):
                self._is_accepted(dag, day, last)
            return bool(runs)

        self._wait(is_there, STARTS_WITHIN, f"Airflow made no run of {dag} for {day:%Y-%m-%d}")
        return runs[0].dag_run_id

    def _state_of(self, dag: str, run: str, task: str | None) -> str | None:
        """Return the state of a task of a run, or of the whole run. Raises `StepFailedError` if any task failed."""
        path = f"/dags/{dag}/dagRuns/{run}"
        tasks = self._ask(lambda: self._api.get(f"{path}/taskInstances", _Tasks)).task_instances
        for instance in tasks:
            if instance.state in FAILED:
                logs = Path(os.environ["AIRFLOW_HOME"]) / "logs" / f"dag_id={dag}" / f"run_id={run}"
                log = logs / f"task_id={instance.task_id}" / f"attempt={instance.try_number}.log"
                raise StepFailedError(f"Task {instance.task_id} of {run} failed", log if log.exists() else self.log)
        if task is None:
            return self._ask(lambda: self._api.get(path, _Run)).state
        return next((instance.state for instance in tasks if instance.task_id == task), None)

    def _knows(self, dag: str) -> bool:
        try:
            self._api.get(f"/dags/{dag}", _Dag)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise StepFailedError(str(error), self.log) from None
        return True

    def _ask(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except ApiError as error:
            raise StepFailedError(str(error), self.log) from None

    def _check_runs(self) -> None:
        if self.process.poll() is not None:
            raise StepFailedError("Airflow ended", self.log)

    def _wait(self, is_so: Callable[[], bool], seconds: float, message: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            self._check_runs()
            if time.monotonic() > deadline:
                raise StepFailedError(f"{message} after {seconds:.0f} s", self.log)
            time.sleep(LOOK_EVERY)


@contextmanager
def airflow_services(home: Path, log: Path, say: Callable[[str], None]) -> Iterator[Airflow]:
    """Run Airflow for as long as the context lasts. It starts in the background: see `Airflow.wait_until_ready`."""
    ready_file = home / "var" / "demo" / "airflow.url"
    ready_file.unlink(missing_ok=True)
    with log.open("w") as out:
        command = [sys.executable, str(SCRIPT), "--ready-file", str(ready_file)]
        process = subprocess.Popen(
            command, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield Airflow(process, log, ready_file, say)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            say(f"Airflow did not end within {ENDS_WITHIN:.0f} s and was killed; some of its processes may still run")
