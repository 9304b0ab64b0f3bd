"""The runs of a DAG, started and inspected through Airflow's REST API as a user does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from tests.airflow.live.jobs import start_of
from tests.airflow.live.services import Airflow

_PATIENCE = 900
_ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}


class Runs:
    """The runs of a DAG. Intervals are counted back from the last complete interval, which is 1."""

    def __init__(self, airflow: Airflow, dag: str) -> None:
        self._airflow, self._api, self._dag = airflow, airflow.api, dag

    def unpause(self) -> None:
        """Let the scheduler start runs of the DAG."""
        self._api.patch(f"/dags/{self._dag}", {"is_paused": False})

    def trigger(self, logical_date: datetime | None = None, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run by hand; return its id."""
        date = None if logical_date is None else logical_date.isoformat()
        content = {"logical_date": date, "conf": dict(conf or {})}
        return str(self._api.post(f"/dags/{self._dag}/dagRuns", content)["dag_run_id"])

    def backfill(self, oldest: int, newest: int, conf: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Start a backfill of some intervals."""
        self.backfill_dates(start_of(oldest), start_of(newest), conf, **options)

    def backfill_dates(
        self, first: datetime, last: datetime, conf: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Start a backfill of logical dates when the previous backfill is over: Airflow looks for that twice a minute."""
        self._airflow.wait_for(f"the end of a backfill of {self._dag}", self._backfills_are_over, _PATIENCE)
        content = {
            "dag_id": self._dag,
            "from_date": first.isoformat(),
            "to_date": last.isoformat(),
            "reprocess_behavior": "completed",
            "dag_run_conf": dict(conf or {}),
            **options,
        }
        self._api.post("/backfills", content)

    def clear(self, run: str, *tasks: str) -> None:
        """Clear tasks of a run, and all that come after them."""
        content = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": list(tasks),
            "include_downstream": True,
            "only_failed": False,
        }
        self._api.post(f"/dags/{self._dag}/clearTaskInstances", content)

    def mark_success(self, run: str, task: str) -> None:
        """Mark a task as success."""
        self._api.patch(f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}", {"new_state": "success"})

    def delete(self, run: str) -> None:
        """Delete a run."""
        self._api.delete(f"/dags/{self._dag}/dagRuns/{quote(run)}")

    def of(self, logical_date: datetime) -> str:
        """Return the run of a logical date as soon as it exists."""

        def look() -> str | None:
            date = quote(logical_date.isoformat())
            runs = self._api.get(f"/dags/{self._dag}/dagRuns?logical_date_gte={date}&logical_date_lte={date}")[
                "dag_runs"
            ]
            return runs[0]["dag_run_id"] if runs else None

        return str(self._airflow.wait_for(f"a run of {self._dag} for {logical_date}", look, _PATIENCE))

    def latest(self, run_type: str, *, after: str | None = None) -> str:
        """Return the latest run of a type as soon as a run other than `after` exists."""

        def look() -> str | None:
            runs = self._api.get(f"/dags/{self._dag}/dagRuns?run_type={run_type}&order_by=-run_after")["dag_runs"]
            return runs[0]["dag_run_id"] if runs and runs[0]["dag_run_id"] != after else None

        return str(self._airflow.wait_for(f"a run of {self._dag} of type {run_type}", look, _PATIENCE))

    def state(self, run: str) -> str:
        """Return the state of a run."""
        return str(self._api.get(f"/dags/{self._dag}/dagRuns/{quote(run)}")["state"])

    def task_state(self, run: str, task: str) -> str | None:
        """Return the state of a task of a run; None if it was not started."""
        state = self._api.get(f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}")["state"]
        return None if state is None else str(state)

    def has_ended(self, run: str, task: str) -> bool:
        """Return whether a task of a run has ended."""
        return self.task_state(run, task) in _ENDED

    def tries(self, run: str, task: str) -> int:
        """Return how often a task of a run was tried."""
        return int(self._api.get(f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}")["try_number"])

    def wait_for_task(self, run: str, task: str, state: str) -> None:
        """Wait until a task of a run is in a state. Fails when it has ended in another one."""

        def look() -> bool:
            now = self.task_state(run, task)
            assert now == state or now not in _ENDED, f"{run}: {task} is {now}: {self.log(run, task)}"
            return now == state

        self._airflow.wait_for(f"{self._dag} {run} {task} {state}", look, _PATIENCE)

    def wait_until_active(self, run: str) -> None:
        """Wait until the scheduler has made a run active: it has looked whether its tasks may start."""
        self._airflow.wait_for(f"{self._dag} {run} active", lambda: self.state(run) == "running", _PATIENCE)

    def assert_succeeds(self, *runs: str) -> None:
        """Wait until runs have ended, and assert that they succeeded."""
        for run in runs:
            assert self.ended(run) == "success", f"{run}: {self._failure(run)}"

    def assert_refused(self, run: str, *words: str) -> None:
        """Wait until a run has ended.

        Assert that its task `run` failed at the first try, and that its exception says `words`.
        """
        assert self.ended(run) == "failed"
        message = self.log(run)
        for word in words:
            assert word in message
        assert "not retried" in message or "Nothing was done" in message

    def _failure(self, run: str) -> str:
        """Return the logs of the tasks that failed."""
        tasks = self._api.get(f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances")["task_instances"]
        failed = [task["task_id"] for task in tasks if task["state"] == "failed"]
        return "\n".join(f"{task}: {self.log(run, task)}" for task in failed)

    def result(self, run: str, task: str = "run") -> Any:
        """Return what a task returned."""
        path = f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        return self._api.get(path)["value"]

    def note(self, run: str, task: str = "run") -> str:
        """Return the note of a task."""
        return str(self._api.get(f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}")["note"])

    def question(self, run: str, task: str) -> Any:
        """Wait until a task waits for a person, and the scheduler knows it; return the question of the task."""
        self.wait_for_task(run, task, "awaiting_input")
        self._airflow.wait_for(f"the question of {run}", lambda: self._is_asked(run, task), _PATIENCE)
        return self._api.get(self._question(run, task))

    def _is_asked(self, run: str, task: str) -> bool:
        """Return whether the scheduler knows that a task waits for a person.

        It takes an answer that comes within the second before for a failure of the task: a person is never that quick.
        """
        named = f"dag_id={self._dag}, task_id={task}, run_id={run},"
        tried = f"try_number={self.tries(run, task)},"
        ended = (line for line in self._airflow.log("scheduler").splitlines() if "TaskInstance Finished" in line)
        return any(named in line and tried in line for line in ended)

    def answer(self, run: str, task: str, option: str) -> None:
        """Answer a task that waits for a person, and wait until it has ended."""
        self.question(run, task)
        self._api.patch(self._question(run, task), {"chosen_options": [option]})
        self._airflow.wait_for(f"the end of task {task} of {run}", lambda: self.has_ended(run, task), _PATIENCE)

    def _question(self, run: str, task: str) -> str:
        return f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}/-1/hitlDetails"

    def log(self, run: str, task: str = "run") -> str:
        """Return the log of the last try of a task."""
        path = f"/dags/{self._dag}/dagRuns/{quote(run)}/taskInstances/{task}/logs/{self.tries(run, task)}?full_content=true"
        lines = self._api.get(path)["content"]
        return "\n".join(_text(line) for line in lines)

    def _backfills_are_over(self) -> bool:
        backfills = self._api.get(f"/backfills?dag_id={self._dag}")["backfills"]
        return all(backfill["completed_at"] is not None for backfill in backfills)

    def cancel_backfill(self) -> None:
        """Cancel the open backfill of the DAG."""
        backfills = self._api.get(f"/backfills?dag_id={self._dag}")["backfills"]
        (running,) = [backfill["id"] for backfill in backfills if backfill["completed_at"] is None]
        self._api.put(f"/backfills/{running}/cancel")

    def ended(self, run: str) -> str:
        """Wait until a run has ended; return its state."""

        def look() -> str | None:
            state = self.state(run)
            return state if state in {"success", "failed"} else None

        return str(self._airflow.wait_for(f"the end of {self._dag} {run}", look, _PATIENCE))


def _text(line: Any) -> str:
    """Return a line of a log, with its exceptions."""
    if not isinstance(line, dict):
        return str(line)
    details = [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in line.get("error_detail") or []]
    return "\n".join([str(line.get("event", "")), *details])
