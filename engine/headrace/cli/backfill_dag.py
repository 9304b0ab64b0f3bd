"""`headrace backfill-dag`: make a backfill of a job's DAG in Airflow, show how its days get on, or cancel it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional
from urllib.parse import unquote, urlsplit

import typer

from headrace import clock, logs
from headrace.airflow_api import CONNECTION, AirflowApi, ApiError, BusyError, quoted
from headrace.cli.arguments import check_word, load, the_job
from headrace.errors import CheckFailed, ConfigError, FencedError, ServiceError
from headrace.names import counted
from headrace.report import Block, Note, Report, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig


First = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="[JOB]", help="Job; the only one if left out.", show_default=False),
]
Span = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(
        metavar="FROM..TO", help="Days or timestamps, the first inclusive, the second not.", show_default=False
    ),
]
MostActive = Annotated[
    int, typer.Option("--max-active-runs", metavar="N", min=1, help="DAG runs that Airflow has at work at most.")
]
Reprocess = Annotated[
    str,
    typer.Option("--reprocess", metavar="completed|failed", help="Days that have a run already: all, or failed ones."),
]
Cancel = Annotated[bool, typer.Option("--cancel", help="Cancel the DAG's running backfill.")]
Detach = Annotated[bool, typer.Option("--detach", help="Make the backfill, and do not wait for its end.")]
Patience = Annotated[
    str, typer.Option("--patience", metavar="DURATION", help="How long to repeat what Airflow refuses for the moment.")
]
Url = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--airflow", metavar="URL", help="Airflow's API server, in place of the connection's."),
]

_log = logging.getLogger(__name__)
_VARIABLE: Final = f"AIRFLOW_CONN_{CONNECTION.upper()}"
_LOOKS_EVERY: Final = 5.0
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 15.0
_PAGE: Final = 100
"""Most entries that Airflow lists at once."""
_LAST: Final = timedelta(milliseconds=1)
"""Airflow's last date is inclusive."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backfill-dag")(backfill_dag)


def backfill_dag(
    first: First = None,
    span: Span = None,
    *,
    max_active_runs: MostActive = 100,
    reprocess: Reprocess = "completed",
    cancel: Cancel = False,
    detach: Detach = False,
    patience: Patience = "10m",
    airflow: Url = None,
) -> Report:
    """Make a backfill of a job's DAG in Airflow, and show how its days get on until it ends.

    Days that the job has taken in already are registered for replay; the DAG JOB_replay computes them again. FROM and TO are in the
    time zone of the job's schedule, unless they have an offset. The same command again goes on to show the backfill that it has made.

    Airflow refuses a second backfill of a DAG while one is running, and on SQLite whatever comes while its scheduler writes: the command
    asks again, for at most --patience. --cancel stops runs that have not begun; a run at work ends its work, and days that are
    registered for replay stay registered.

    The user and the address are those of the connection in AIRFLOW_CONN_HEADRACE_AIRFLOW_API, as JSON or as a URI.

    Example:  headrace backfill-dag flights 2013-01-10..2013-01-17 --max-active-runs 8

    Exit codes: 0 all days succeeded; 1 some did not; 2 configuration, or Airflow refuses the backfill; 3 another backfill of
    the DAG runs for longer than --patience; 4 Airflow does not answer.
    """
    name, text = _arguments(first, span, cancel=cancel)
    config = load(name)
    check_word("--reprocess", reprocess, ("completed", "failed"))
    backfills = DagBackfills(_connected(airflow), config.job, _seconds(patience))
    days = None if text is None else _days(text, config)
    if cancel:
        return _cancelled(config.job, backfills, days)
    assert days is not None  # noqa: S101 - `_arguments` asks for it
    _refuse_without_backfills(config)
    number = backfills.make(days, max_active_runs, reprocess)
    if detach:
        content = facts(job=config.job, backfill=number, outcome="running", **days.plain)
        return Report(
            *content, f"backfill {number} of DAG '{config.job}' is made: {days}", _next(config.job, days, "shows it")
        )
    runs = backfills.watched(number, days)
    if not runs:  # on SQLite, Airflow may keep a backfill whose runs it could not make
        number = backfills.make(days, max_active_runs, reprocess)
        runs = backfills.watched(number, days)
    return _ended(config.job, number, days, runs)


@dataclass(frozen=True, slots=True)
class Days:
    """First instant of a backfill, and the one after its last."""

    start: datetime
    end: datetime

    @property
    def bounds(self) -> tuple[str, str]:
        """Return the first and the last date, as Airflow takes them."""
        return self.start.isoformat(), (self.end - _LAST).isoformat()

    @property
    def plain(self) -> dict[str, datetime]:
        """Return both for machines."""
        return {"from": self.start.astimezone(UTC), "to": self.end.astimezone(UTC)}

    def is_of(self, backfill: Mapping[str, Any]) -> bool:
        """Return whether a backfill that Airflow lists has these days."""
        dates = [datetime.fromisoformat(str(backfill[name])) for name in ("from_date", "to_date")]
        return dates == [datetime.fromisoformat(bound) for bound in self.bounds]

    def __str__(self) -> str:
        """Return FROM..TO."""
        return "..".join(text.isoformat().removesuffix("T00:00:00") for text in (_naive(self.start), _naive(self.end)))


def _naive(time: datetime) -> datetime:
    return time.replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class DagBackfills:
    """Backfills of a DAG. Repeats for `patience` seconds what Airflow refuses for the moment."""

    api: AirflowApi
    dag: str
    patience: float

    def make(self, days: Days, most_active: int, reprocess: str) -> int:
        """Make a backfill and return its number; that of the running one with the same days, if there is one.

        Raises `FencedError` while another one runs, `ServiceError` when Airflow does not answer, `ConfigError` when it refuses.
        """
        first, last = days.bounds
        settings = {"reprocess_behavior": reprocess, "max_active_runs": most_active}
        body = {"dag_id": self.dag, "from_date": first, "to_date": last, **settings}
        repeated = _Repeated(self.patience)
        while True:
            try:
                if self._get(f"/dags/{quoted(self.dag)}").get("is_paused"):
                    raise ConfigError(_PAUSED.format(dag=self.dag))
                if (running := self.running()) is not None and days.is_of(running):
                    return int(running["id"])
                return int(self.api.post_once("/backfills", body)["id"])
            except BusyError as busy:  # it may have been made: the next attempt looks first
                repeated.wait(str(busy), ServiceError, "Airflow has not answered as it should")
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise ConfigError(f"Airflow refuses the backfill: {error}. Nothing was made.") from None
                repeated.wait(str(error), FencedError, f"another backfill of DAG '{self.dag}' is running")

    def running(self) -> Mapping[str, Any] | None:
        """Return the backfill that is not over; None without one."""
        listed = self._get("/backfills", dag_id=self.dag, order_by="-id").get("backfills", [])
        return next((backfill for backfill in listed if backfill["completed_at"] is None), None)

    def cancel(self, number: int) -> None:
        """Cancel a backfill; do nothing if it is over. Raises `ServiceError` and `ConfigError`."""
        repeated = _Repeated(self.patience)
        while True:
            try:
                self.api.put(f"/backfills/{number}/cancel")
            except BusyError as busy:
                repeated.wait(str(busy), ServiceError, "Airflow has not answered as it should")
                continue
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise ConfigError(f"Airflow refuses to cancel backfill {number}: {error}.") from None
            return

    def watched(self, number: int, days: Days) -> list[dict[str, Any]]:
        """Wait until a backfill is over, and show each change of a day's run; return the runs. Raises `ServiceError`."""
        repeated, shown = _Repeated(self.patience), dict[str, str]()
        while True:
            try:
                backfill = self._get(f"/backfills/{number}")
                is_over = backfill["completed_at"] is not None
                runs = list(self._runs(days, datetime.fromisoformat(backfill["created_at"])))
                for run in runs:
                    _show(run, shown)
                if is_over:
                    return [{**run, "note": note} for run, note in self._with_notes(runs, days)]
                repeated = _Repeated(self.patience)
                clock.sleep(_LOOKS_EVERY)
            except BusyError as busy:
                repeated.wait(str(busy), ServiceError, f"the state of backfill {number}, which goes on, is unknown")

    def _with_notes(self, runs: list[dict[str, Any]], days: Days) -> Iterator[tuple[dict[str, Any], str | None]]:
        path = f"/dags/{quoted(self.dag)}/dagRuns/~/taskInstances"
        notes = {task["dag_run_id"]: task["note"] for task in self._all(path, "task_instances", days, task_id="run")}
        yield from ((run, notes.get(run["run_id"])) for run in runs)

    def _runs(self, days: Days, since: datetime) -> Iterator[dict[str, Any]]:
        """Yield the runs of a backfill that was made at a time: it has queued them then. Others are those of earlier backfills."""
        for run in self._all(f"/dags/{quoted(self.dag)}/dagRuns", "dag_runs", days, run_type="backfill"):
            if run["queued_at"] is not None and datetime.fromisoformat(run["queued_at"]) >= since:
                yield {"day": run["logical_date"], "run_id": run["dag_run_id"], "state": run["state"]}

    def _all(self, path: str, name: str, days: Days, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield all entries of a list, with a logical date of these days."""
        first, last = days.bounds
        query |= {"logical_date_gte": first, "logical_date_lte": last, "order_by": "logical_date", "limit": str(_PAGE)}
        offset = 0
        while listed := self._get(path, **query, offset=str(offset))[name]:
            yield from listed
            offset += len(listed)
            if len(listed) < _PAGE:
                return

    def _get(self, path: str, **query: str) -> Mapping[str, Any]:
        try:
            return self.api.get(path, **query)
        except BusyError:
            raise
        except ApiError as error:
            raise ConfigError(f"Airflow refuses the request: {error}. Is '{self.dag}' a DAG of that Airflow?") from None


_PAUSED: Final = "DAG '{dag}' is paused, and a backfill of it would stay queued. Nothing was made. Unpause it first: airflow dags unpause {dag}"


class _Repeated:
    """Waits between attempts: twice as long each time, until patience ends."""

    def __init__(self, patience: float) -> None:
        self._patience, self._deadline = patience, clock.monotonic() + patience
        self._wait, self._has_said = _FIRST_WAIT, False

    def wait(self, reason: str, error: type[ServiceError | FencedError], what: str) -> None:
        """Wait before the next attempt; say why at the first time. Raises `error` when patience ends."""
        if clock.monotonic() + self._wait > self._deadline:
            raise error(
                f"{what}, also after {self._patience:.0f} s: {reason}. The same command looks again, and goes on."
            )
        if not self._has_said:
            message = f"{what} ({reason}); asking again for {self._patience:.0f} s"
            logs.write(_log, message, level=logging.WARNING)
        self._has_said = True
        clock.sleep(self._wait)
        self._wait = min(2 * self._wait, _LONGEST_WAIT)


def _show(run: Mapping[str, Any], shown: dict[str, str]) -> None:
    """Print the state of a day's run, if it has changed."""
    if shown.get(run["run_id"]) != run["state"]:
        shown[run["run_id"]] = run["state"]
        logs.write(_log, f"{_text(run['day'])} {run['state']}", kind="day", text=f"{_text(run['day'])} {run['state']}")


def _text(day: str | None) -> str:
    return str(day).removesuffix("T00:00:00Z")


def _arguments(first: str | None, second: str | None, *, cancel: bool) -> tuple[str, str | None]:
    """Return job and FROM..TO of `[JOB] [FROM..TO]`. Raises `ConfigError` for a missing one."""
    name, text = (None, first) if second is None and first is not None and ".." in first else (first, second)
    if text is None and not cancel:
        raise ConfigError("the days are missing: FROM..TO, such as 2013-01-10..2013-01-17 (the last day is 16 January)")
    return the_job(name), text


def _days(text: str, config: JobConfig) -> Days:
    """Return the days of FROM..TO. Raises `ConfigError` for anything else."""
    from zoneinfo import ZoneInfo

    zone = ZoneInfo("UTC" if config.schedule is None else config.schedule.timezone)
    try:
        start, end = (datetime.fromisoformat(part) for part in text.split(".."))
    except ValueError:
        raise ConfigError(f"'{text}' are no days: write FROM..TO, such as 2013-01-10..2013-01-17") from None
    start, end = (time if time.tzinfo is not None else time.replace(tzinfo=zone) for time in (start, end))
    if start >= end:
        raise ConfigError(f"'{text}' are no days: TO is the day after the last one, and lies after FROM")
    return Days(start, end)


def _seconds(text: str) -> float:
    from headrace.config import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise ConfigError(f"--patience: {error}") from None


def _refuse_without_backfills(config: JobConfig) -> None:
    """Raise `ConfigError` for a job whose DAG has no backfills in Airflow."""
    if config.schedule is None:
        why, way = "has no schedule, so its DAG has no days", "Write schedule.cron and schedule.start"
    elif config.schedule.after:
        why, way = (
            "runs by partitions of assets (schedule.after), and Airflow has no backfills of such DAGs",
            (
                f"Trigger the DAG {config.job}_replay with the params from and to, or run headrace backfill {config.job} --from FROM --to TO"
            ),
        )
    else:
        return
    raise ConfigError(f"job '{config.job}' {why}. Nothing was made. {way}.")


def _connected(url: str | None) -> AirflowApi:
    """Return the API of the connection in the environment. Raises `ConfigError` without one."""
    if not (text := os.environ.get(_VARIABLE)):
        raise ConfigError(
            f"{_VARIABLE} is not set: the connection to Airflow's API, such as http://USER:PASSWORD@HOST:8080, or as JSON "
            '{"conn_type": "http", "host": ..., "port": ..., "login": ..., "password": ...}'
        )
    try:
        address, login, password = _of_json(json.loads(text)) if text.lstrip().startswith("{") else _of_uri(text)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{_VARIABLE} is no connection: write a URI, or JSON") from None
    at_hand = os.environ.get("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    return AirflowApi((url or address or at_hand).rstrip("/"), login, password)


def _of_json(content: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    host, port = content.get("host"), content.get("port")
    scheme = content.get("schema") or "http"
    address = f"{scheme}://{host}{f':{port}' if port else ''}" if host else None
    return address, content.get("login"), content.get("password")


def _of_uri(text: str) -> tuple[str | None, str | None, str | None]:
    parts = urlsplit(text)
    if not parts.scheme:
        raise ValueError(text)
    scheme = parts.path.strip("/") or ("https" if parts.scheme == "https" else "http")
    port = f":{parts.port}" if parts.port else ""
    address = f"{scheme}://{parts.hostname}{port}" if parts.hostname else None
    login, password = (None if word is None else unquote(word) for word in (parts.username, parts.password))
    return address, login, password


def _cancelled(job: str, backfills: DagBackfills, days: Days | None) -> Report:
    try:
        running = backfills.running()
    except BusyError as busy:
        raise ServiceError(f"Airflow does not answer: {busy}. Nothing was cancelled.") from None
    if running is None:
        return Report(
            *facts(job=job, backfill=None, outcome="nothing_running"), f"no backfill of DAG '{job}' is running"
        )
    if days is not None and not days.is_of(running):
        raise ConfigError(
            f"the running backfill of DAG '{job}' is not of {days}: it is of {running['from_date']} to {running['to_date']}. Nothing was "
            "cancelled. Leave the days out to cancel it."
        )
    number = int(running["id"])
    backfills.cancel(number)
    return Report(
        *facts(job=job, backfill=number, outcome="cancelled"),
        f"backfill {number} of DAG '{job}' is cancelled. A run at work ends its work. Runs that had not begun are failed, and hold up later "
        "runs: backfill their days again with --reprocess failed, or delete them.",
        f"Days that are registered for replay stay registered: the DAG {job}_replay computes them, and its task 'approve' takes a Reject.",
    )


def _ended(job: str, number: int, days: Days, runs: list[dict[str, Any]]) -> Report:
    """Return the report of a backfill that is over."""
    if not runs:
        raise ConfigError(
            f"Airflow has made no runs of {days}: no interval of the schedule of job '{job}' begins there"
        )
    failed = sum(run["state"] != "success" for run in runs)
    replayed = sum("replay" in (run["note"] or "") for run in runs)
    outcome = "failed" if failed else "done"
    return Report(
        *facts(job=job, backfill=number, outcome=outcome, **days.plain),
        *_listed(runs),
        f"backfill {number} of DAG '{job}' is over: {counted(len(runs), 'day')}, {failed} of them failed",
        f"{counted(replayed, 'day')} had been taken in before: the DAG {job}_replay computes them again"
        if replayed
        else None,
        _next(job, days, "makes the failed days again", "--reprocess failed") if failed else None,
        exit_code=CheckFailed.exit_code if failed else 0,
    )


def _listed(runs: list[dict[str, Any]]) -> Iterator[Block]:
    rows = [{**run, "note": run["note"]} for run in runs]
    yield Table("days", (), rows)
    yield Table.shown(("day", "state", "note"), [(_text(run["day"]), run["state"], _line(run["note"])) for run in runs])


def _line(note: str | None) -> str:
    """Return the beginning of a note, in one line."""
    line = " ".join((note or "").split())
    return line if len(line) <= _NOTE else f"{line[:_NOTE]}..."


_NOTE: Final = 100


def _next(job: str, days: Days, effect: str, *options: str) -> Note:
    return Note(effect, "next", " ".join(("headrace backfill-dag", job, str(days), *options)))
