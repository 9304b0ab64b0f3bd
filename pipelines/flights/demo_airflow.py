"""The Airflow of the demo: starts `setup/airflow.py`, and calls its REST API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import requests

SCRIPT: Final = Path(__file__).resolve().parents[2] / "setup" / "airflow.py"

STARTS_WITHIN: Final = 300.0
RUN_ENDS_WITHIN: Final = 1800.0
ENDS_WITHIN: Final = 30.0
LOOK_EVERY: Final = 1.0
PATIENCE: Final = 30.0
"""Seconds."""

FAILED: Final = frozenset({"failed", "upstream_failed"})


class StepFailedError(Exception):
    """A step of the demo failed; the message gives the reason, the log the details."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


@dataclass
class Airflow:
    """A running Airflow."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    token: str = ""

    def wait_until_ready(self, dag: str) -> None:
        """Wait until the scheduler runs and knows the DAG. Raises `StepFailedError` after five minutes."""
        self._wait(lambda: self._is_ready(dag), STARTS_WITHIN, f"Airflow has no DAG {dag}")

    def start_backfill(self, dag: str, first: datetime, last: datetime) -> None:
        """Make Airflow run the DAG for the days `first` to `last`, one after the other; do nothing if such a backfill is running."""
        self._ask("PATCH", f"/dags/{dag}", {"is_paused": False})
        if not self._has_open_backfill(dag):
            days = {"from_date": first.isoformat(), "to_date": last.isoformat()}
            how = {"max_active_runs": 1, "reprocess_behavior": "completed"}
            self._ask("POST", "/backfills", {"dag_id": dag, **days, **how})

    def result_of(self, dag: str, day: datetime) -> tuple[dict[str, Any], float]:
        """Wait for the task `run` of a day; return its result and its seconds. Raises `StepFailedError` if a task failed."""
        run = self._run_of(dag, day)
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/run"
        self._wait(lambda: self._state_of(dag, run, "run") == "success", RUN_ENDS_WITHIN, f"{run} has not ended")
        result = self._ask("GET", f"{path}/xcomEntries/return_value?deserialize=true")
        seconds: float = self._ask("GET", path)["duration"]
        return result["value"], seconds

    def wait_for_success(self, dag: str, day: datetime) -> None:
        """Wait for the end of all tasks of a day. Raises `StepFailedError` if one failed."""
        run = self._run_of(dag, day)
        self._wait(lambda: self._state_of(dag, run, None) == "success", RUN_ENDS_WITHIN, f"{run} has not ended")

    def wait_for_end_of_backfill(self, dag: str) -> None:
        """Wait until Airflow has closed the backfill, up to half a minute after its last run: before that it refuses another backfill."""
        self._wait(lambda: not self._has_open_backfill(dag), RUN_ENDS_WITHIN, "Airflow does not close the backfill")

    def _has_open_backfill(self, dag: str) -> bool:
        backfills = self._ask("GET", f"/backfills?dag_id={dag}")["backfills"]
        return any(backfill["completed_at"] is None for backfill in backfills)

    def _run_of(self, dag: str, day: datetime) -> str:
        """Return the id of the DAG run of a day."""
        wanted = {"logical_date_gte": day.isoformat(), "logical_date_lte": day.isoformat()}
        runs: list[dict[str, Any]] = []

        def is_there() -> bool:
            runs[:] = self._ask("GET", f"/dags/{dag}/dagRuns", query=wanted)["dag_runs"]
            return bool(runs)

        self._wait(is_there, STARTS_WITHIN, f"Airflow made no run of {dag} for {day:%Y-%m-%d}")
        run: str = runs[0]["dag_run_id"]
        return run

    def _state_of(self, dag: str, run: str, task: str | None) -> str | None:
        """Return the state of a task of a run, or of the whole run. Raises `StepFailedError` if any task failed."""
        tasks = self._ask("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        for instance in tasks:
            if instance["state"] in FAILED:
                logs = Path(os.environ["AIRFLOW_HOME"]) / "logs" / f"dag_id={dag}" / f"run_id={run}"
                log = logs / f"task_id={instance['task_id']}" / f"attempt={instance['try_number']}.log"
                raise StepFailedError(f"Task {instance['task_id']} of {run} failed", log if log.exists() else self.log)
        if task is None:
            state: str | None = self._ask("GET", f"/dags/{dag}/dagRuns/{run}")["state"]
            return state
        return next((instance["state"] for instance in tasks if instance["task_id"] == task), None)

    def _is_ready(self, dag: str) -> bool:
        try:
            if not self.token:
                self._log_in()
            health = self._ask("GET", "/monitor/health")
            self._ask("GET", f"/dags/{dag}")
        except (requests.RequestException, FileNotFoundError):
            return False
        return bool(health["scheduler"]["status"] == "healthy")

    def _log_in(self) -> None:
        passwords = Path(os.environ["AIRFLOW_HOME"]) / "simple_auth_manager_passwords.json.generated"
        user = {"username": "admin", "password": json.loads(passwords.read_text())["admin"]}
        answer = requests.post(f"{self.url}/auth/token", json=user, timeout=PATIENCE)
        answer.raise_for_status()
        self.token = answer.json()["access_token"]

    def _ask(self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> Any:
        address, token = f"{self.url}/api/v2{path}", {"Authorization": f"Bearer {self.token}"}
        answer = requests.request(method, address, json=body, params=query, headers=token, timeout=PATIENCE)
        answer.raise_for_status()
        return answer.json()

    def _wait(self, is_so: Any, seconds: float, message: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            if self.process.poll() is not None:
                raise StepFailedError("Airflow ended", self.log)
            if time.monotonic() > deadline:
                raise StepFailedError(f"{message} after {seconds:.0f} s", self.log)
            time.sleep(LOOK_EVERY)


@contextmanager
def airflow_services(home: Path, log: Path, port: int) -> Iterator[Airflow]:
    """Run Airflow for as long as the context lasts. It starts in the background: see `Airflow.wait_until_ready`."""
    environment = {**os.environ, "AIRFLOW_PORT": str(port)}
    with log.open("w") as out:
        command = [sys.executable, str(SCRIPT)]
        process = subprocess.Popen(
            command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield Airflow(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(ENDS_WITHIN)
