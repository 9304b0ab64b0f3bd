"""The flights job from end to end, on this machine: `make demo`.

    python -m pipelines.flights.demo            deliver input in two parts, run the job through Airflow after each
    python -m pipelines.flights.demo verify     compare the tables with a plain computation of the same flights

What is there already is used again: the second time, only what is missing is done. The output of every child
process goes to var/log/demo-*.log.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

JOB: Final = "flights"
SOURCE: Final = "flight_events"
ANSWERS_BEFORE_OUTAGE: Final = 400
"""About half of what the first run asks the weather service."""

FIRST_DAY, HALF, LAST_DAY = "2013-01-01", "2013-01-15", "2013-01-31"
LAST_LINES: Final = 30
SERVICE_STARTS_WITHIN: Final = 60.0
MORNINGS: Final = ("2013-01-16T00:00:00+00:00", "2013-02-01T00:00:00+00:00")
"""When Airflow would have run the job with the first, and with all of the input."""

INTERESTING: Final = """
    WITH flights AS (
        SELECT *, date_diff('minute', scheduled_departure, departure) AS delay FROM board
    ), known AS (
        SELECT * FROM flights WHERE expected_delay_minutes > 30 AND delay > 30
        ORDER BY expected_delay_minutes DESC, flight_id LIMIT 7
    ), open AS (
        SELECT * FROM flights WHERE status <> 'arrived' ORDER BY scheduled_departure DESC, flight_id LIMIT 3
    )
    SELECT carrier || ' ' || flight, origin || ' > ' || dest, aircraft, strftime(scheduled_departure, '%d %b %H:%M'),
           expected_delay_minutes, delay, status, round(wind_speed), round(visib, 1)
    FROM (SELECT * FROM known UNION ALL SELECT * FROM open)
"""


def wide_enough(console: Console) -> Console:
    """Return `console`, or one of a usual width where there is no terminal to ask."""
    return console if console.is_terminal else Console(width=120)


class StepFailedError(Exception):
    """A step could not be done; the message says why, the log what happened."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


@dataclass
class Demo:
    """One showing: where things are, and how long each step took."""

    home: Path
    console: Console = field(default_factory=lambda: wide_enough(Console()))
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def events(self) -> Path:
        """The input: one file a day."""
        return self.home / "var" / "data" / "flights" / "events"

    @property
    def noted(self) -> Path:
        """What the last successful showing left: its input and its last checkpoint."""
        return self.home / "var" / "demo" / "done.json"

    def log(self, name: str) -> Path:
        """The log of a child process."""
        return self.home / "var" / "log" / f"demo-{name}.log"

    def run(self) -> None:
        """Do every step that isn't done yet, and show what came of it."""
        for folder in (self.events, self.noted.parent, self.log("x").parent):
            folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        if self._is_done():
            self._say("reused", "input of January 2013, and the job has taken in all of it: nothing to run")
        else:
            self._deliver_and_run()
        self._show_board()
        self._show_checkpoints()
        self._show_times(time.perf_counter() - began)

    def _deliver_and_run(self) -> None:
        with self._step("weather service") as say, weather_service(self) as url:
            say(url)
            os.environ["WEATHER_URL"] = url
            self._airflow_database()
            ran_before = self.checkpoints()
            if self.days() and ran_before:
                self._say("reused", f"{len(self.days())} days of input, {len(ran_before)} checkpoints")
            else:
                self._deliver("deliver January 1 to 15", HALF)
                outage(url, begins_after=ANSWERS_BEFORE_OUTAGE)
                self._run_dag("run the DAG; half-way the weather service goes down", MORNINGS[0], "run-1")
                outage(url, begins_after=None)
            self._deliver("deliver the rest of January", None)
            self._run_dag("run the DAG again", MORNINGS[1], "run-2")
        self.noted.write_text(json.dumps({"days": self.days(), "checkpoint": self._last_checkpoint()}))

    def _airflow_database(self) -> None:
        made = Path(os.environ["AIRFLOW_HOME"]) / "made-by-demo"
        if made.exists():
            self._say("reused", "Airflow's database in var/airflow")
            return
        with self._step("Airflow's database"):
            self._child("airflow-db", "airflow", "db", "migrate")
            made.touch()

    def _deliver(self, name: str, through: str | None) -> None:
        there = len(self.days())
        with self._step(name) as say:
            command = (sys.executable, "-m", "pipelines.flights.events", "--out", str(self.events))
            part = ("--through", through) if through else ()
            self._child("input", *command, "--from", FIRST_DAY, "--to", LAST_DAY, *part)
            say(f"{len(self.days()) - there} new files in {self._shown(self.events)}")

    def _run_dag(self, name: str, logical_date: str, log: str) -> None:
        before = len(self.checkpoints())
        with self._step(name) as say:
            self._child(log, "airflow", "dags", "test", JOB, logical_date)
            found = self.checkpoints()
            waiting = found[-1]["offsets"][SOURCE].get("pending", 0) if found else 0
            waits = f", and {waiting:,} events wait for the weather" if waiting else ""
            say((f"{len(found) - before} new checkpoints" if len(found) > before else "already caught up") + waits)

    def _is_done(self) -> bool:
        if not self.noted.exists():
            return False
        noted = json.loads(self.noted.read_text())
        return bool(noted["days"]) and noted == {"days": self.days(), "checkpoint": self._last_checkpoint()}

    def days(self) -> list[str]:
        """Return the names of the input's files, one a day."""
        return sorted(path.name for path in self.events.glob("*.parquet"))

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the job's checkpoints as the command line shows them, oldest first."""
        if not (self.home / "var" / "state" / JOB / "checkpoints").exists():
            return []
        answer = json.loads(self._child("checkpoints", "headrace", "checkpoints", JOB, "--json"))
        found: list[dict[str, Any]] = answer["checkpoints"]
        return sorted(found, key=lambda checkpoint: int(checkpoint["checkpoint_id"]))

    def _last_checkpoint(self) -> int | None:
        found = self.checkpoints()
        return int(found[-1]["checkpoint_id"]) if found else None

    def _show_board(self) -> None:
        table = Table(title="From the flight board", title_justify="left")
        for heading in ("flight", "route", "aircraft", "scheduled (UTC)"):
            table.add_column(heading, no_wrap=True)
        for heading in ("expected", "delay", "status", "wind", "visibility"):
            table.add_column(heading, justify="left" if heading == "status" else "right")
        rows, total = read_board(self.home / "var" / "lake" / "flight_board")
        for row in rows:
            table.add_row(*("" if value is None else escape(str(value)) for value in row))
        table.caption = (
            f"{total:,} flights. Delays in minutes; expected is what the aircraft's earlier leg made expect."
        )
        table.caption_justify = "left"
        self.console.print("\n", table)

    def _show_checkpoints(self) -> None:
        self.console.print("\n[bold]headrace checkpoints flights[/]")
        self.console.print(escape(self._child("checkpoints", "headrace", "checkpoints", JOB)), highlight=False)

    def _show_times(self, total: float) -> None:
        if self.seconds:
            table = Table(title="Where the time went", title_justify="left", show_header=False)
            for name, seconds in self.seconds.items():
                table.add_row(name, f"{seconds:.1f} s")
            self.console.print("\n", table)
        self.console.print(f"\nDone in {total:.0f} s. Next, for instance:")
        headrace = ".venv/bin/headrace"
        for command, what in (
            (
                f"{headrace} checkpoints {JOB} --json",
                "the outage in the first run's metrics: what failed, what was parked",
            ),
            (f"{headrace} state scan {JOB} -n 5", "the last leg of each aircraft, as state"),
            ("make verify-demo", "the tables against a plain computation of all flights"),
            ("make airflow", "the same DAG with scheduler and UI"),
        ):
            self.console.print(f"  [bold]{escape(command):<44}[/] {what}", highlight=False, soft_wrap=True)

    @contextmanager
    def _step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show `name` with a running clock, then its seconds and whatever was said about it."""
        started = time.perf_counter()

        def finish(result: str) -> None:
            if name in self.seconds:
                return
            self.seconds[name] = time.perf_counter() - started
            self._say(f"{self.seconds[name]:.1f} s", name + (f": {result}" if result else ""))
            progress.stop()

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        progress.add_task(name)
        progress.start()
        try:
            yield finish
            finish("")
        finally:
            progress.stop()

    def _say(self, left: str, right: str) -> None:
        self.console.print(f"  [green]{left:>8}[/]  {escape(right)}", highlight=False)

    def _child(self, log: str, *command: str) -> str:
        """Run a child to its end and return what it printed to standard output; StepFailedError if it failed."""
        path = self.log(log)
        environment = {**os.environ, "COLUMNS": str(self.console.width)}
        with path.open("w") as errors:
            done = subprocess.run(
                command,
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
            )
            errors.write(done.stdout)
        if done.returncode != 0:
            raise StepFailedError(f"`{' '.join(command)}` ended with exit code {done.returncode}", path)
        return done.stdout

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.home))


@contextmanager
def weather_service(demo: Demo) -> Iterator[str]:
    """Run the weather service for as long as the context lasts; its URL."""
    ready = demo.home / "var" / "demo" / "weather.url"
    ready.unlink(missing_ok=True)
    log = demo.log("weather")
    command = (sys.executable, "-m", "pipelines.flights.weather_service", "--port", str(_free_port(8013)))
    with log.open("w") as out:
        service = subprocess.Popen(
            [*command, "--ready-file", str(ready)], cwd=demo.home, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + SERVICE_STARTS_WITHIN
        while not ready.exists():
            if service.poll() is not None:
                raise StepFailedError("The weather service ended before it answered", log)
            if time.monotonic() > deadline:
                raise StepFailedError(f"The weather service didn't answer within {SERVICE_STARTS_WITHIN:.0f} s", log)
            time.sleep(0.05)
        yield ready.read_text().strip()
    finally:
        service.terminate()
        service.wait()


def outage(url: str, *, begins_after: int | None) -> None:
    """Let the weather service go down after so many more requests, or (None) come back."""
    wanted = {"on": begins_after is not None, "after": begins_after or 0}
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=SERVICE_STARTS_WITHIN)
    try:
        connection.request("POST", "/outage", json.dumps(wanted))
        connection.getresponse().read()
    finally:
        connection.close()


def _free_port(wanted: int) -> int:
    """Return `wanted` if nothing listens there, else 0: let the system choose."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return 0 if probe.connect_ex(("127.0.0.1", wanted)) == 0 else wanted


def read_board(path: Path) -> tuple[list[tuple[Any, ...]], int]:
    """Return some lines of the board, late flights and open ones, and how many it has."""
    import duckdb

    from pipelines.comparison import read_table

    board = read_table(str(path))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("board", board)
        return connection.execute(INTERESTING).fetchall(), board.num_rows


def milliseconds(moment: str) -> int:
    """Turn an ISO 8601 moment into milliseconds since the epoch."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def verify(demo: Demo) -> int:
    """Compare the sinks with a computation of all flights that knows no stream; the exit code."""
    from pipelines.flights.verify import main as compare

    found = demo.checkpoints()
    days = [name.removesuffix(".parquet") for name in demo.days()]
    if not found or not days:
        print("There is nothing to verify yet: make demo", file=sys.stderr)
        return 1
    lake = demo.home / "var" / "lake"
    sinks = {"--board": "flight_board", "--alerts": "overdue_alerts", "--departures": "hourly_departures"}
    tables = [part for option, name in sinks.items() for part in (option, str(lake / name))]
    read = (
        "--from",
        FIRST_DAY,
        "--to",
        LAST_DAY,
        "--through",
        days[-1],
        "--watermark",
        str(milliseconds(found[-1]["watermark"])),
    )
    return compare([*tables, *read])


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the demo, or verify what it left; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    demo = Demo(Path(os.environ.get("HEADRACE_HOME") or Path.cwd()))
    try:
        if given == ["verify"]:
            return verify(demo)
        demo.run()
    except StepFailedError as error:
        lines = error.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print(f"\n{error}. The last lines of its log:\n\n" + "\n".join(lines), file=sys.stderr)
        print(f"\nAll of it: {error.log}", file=sys.stderr)
        print("Put right what it names and run `make demo` again: it goes on from here.", file=sys.stderr)
        print("`rm -rf var/demo var/data var/lake var/state var/local` starts the demo from nothing.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. `make demo` goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
