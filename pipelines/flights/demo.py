"""The flights job end to end, on this machine: `make demo`.

    python -m pipelines.flights.demo            deliver input, let Airflow run the job for ten days, a DAG run each
    python -m pipelines.flights.demo verify     compare the tables with a plain computation of the same flights

Finished steps are reused: a second call only does the missing ones. The output of every child
process goes to var/log/demo-*.log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipelines.flights.demo_airflow import Airflow, StepFailedError, airflow_services

JOB: Final = "flights"
SOURCE: Final = "flight_events"
ANSWERS_BEFORE_OUTAGE: Final = 220
"""The weather service goes down in the third run: a day asks for about 80 observations."""

FIRST_DAY, LAST_DAY = "2013-01-01", "2013-01-31"
DAYS: Final = 32
"""Files of input: the last arrivals of January are in February's first."""

START: Final = datetime(2013, 1, 1, tzinfo=UTC)
RUNS: Final = 10
"""Days that the demo runs; the rest of January is there for runs of one's own."""

LAST_LINES: Final = 30
SERVICE_STARTS_WITHIN: Final = 60.0

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
    """Return `console`, or a console of the usual width if there is no terminal."""
    return console if console.is_terminal else Console(width=120)


@dataclass
class Demo:
    """One demonstration: its paths, and the duration of each step."""

    home: Path
    console: Console = field(default_factory=lambda: wide_enough(Console()))
    seconds: dict[str, float] = field(default_factory=dict)
    runs: int = RUNS

    @property
    def events(self) -> Path:
        """Generate the input: one file per day."""
        return self.home / "var" / "data" / "flights" / "events"

    @property
    def end(self) -> datetime:
        """The end of the last day that the demo runs."""
        return START + timedelta(days=self.runs)

    def log(self, name: str) -> Path:
        """The log of a child process."""
        return self.home / "var" / "log" / f"demo-{name}.log"

    def run(self) -> None:
        """Run every step that isn't done yet, and show the results."""
        for folder in (self.events, self.home / "var" / "demo", self.log("x").parent):
            folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        if self.taken_in() >= self.end:
            self._say("reused", f"the job has taken in {self.runs} days: nothing to run")
        else:
            self._deliver_and_run()
        self._show_board()
        self._show_checkpoints()
        self._show_times(time.perf_counter() - began)

    def _deliver_and_run(self) -> None:
        with weather_service(self) as url, self._airflow(url) as airflow:
            self._deliver()
            with self._step("Airflow's database and services") as say:
                airflow.wait_until_ready(JOB)
                say(airflow.url)
            backfill = f"a backfill of {self.runs} days, a DAG run each"
            before = self.seconds_of_micro_batches()
            with self._step(backfill) as say:
                if self.taken_in() == START:
                    self._outage(url, begins_after=ANSWERS_BEFORE_OUTAGE)
                say(f"{self._backfill(airflow, url):,} rows")
        of_the_job = self.seconds_of_micro_batches() - before
        self.seconds["  of which micro-batches of the job"] = of_the_job
        self.seconds["  of which Airflow, and starts of Python and Spark"] = self.seconds[backfill] - of_the_job

    def _airflow(self, weather: str) -> AbstractContextManager[Airflow]:
        os.environ["WEATHER_URL"] = weather
        return airflow_services(self.home, self.log("airflow"), lambda sentence: self._say("", sentence))

    def _deliver(self) -> None:
        if len(self.days()) == DAYS:
            self._say("reused", f"{DAYS} days of input")
            return
        with self._step("deliver January") as say:
            command = (sys.executable, "-m", "pipelines.flights.events", "--out", str(self.events))
            self._child("input", *command, "--from", FIRST_DAY, "--to", LAST_DAY)
            say(f"{len(self.days())} files in {self._shown(self.events)}")

    def _backfill(self, airflow: Airflow, weather: str) -> int:
        """Make Airflow run the days that the job has not taken in, and report each; return the rows taken in."""
        first = self.taken_in()
        days = [first + timedelta(days=n) for n in range((self.end - first).days)]
        airflow.start_backfill(JOB, days[0], days[-1])
        rows = 0
        for day in days:
            result, seconds = airflow.result_of(JOB, day, days[-1])
            rows += result.rows_in
            waits = f", and {result.waiting:,} events wait for the weather" if result.waiting else ""
            news = f"checkpoint {result.checkpoint}, {result.rows_in:,} rows{waits}"
            self._say(f"{seconds:.1f} s", f"  run of {day:%Y-%m-%d}: {news}")
            if result.waiting:
                self._outage(weather, begins_after=None)
        airflow.wait_for_success(JOB, days[-1])
        airflow.wait_for_end_of_backfill(JOB)
        return rows

    def _outage(self, weather: str, *, begins_after: int | None) -> None:
        try:
            outage(weather, begins_after=begins_after)
        except (OSError, HTTPException) as error:
            raise StepFailedError(f"The weather service does not answer ({error})", self.log("weather")) from None

    def days(self) -> list[str]:
        """Return the names of the input's files, one a day."""
        return sorted(path.name for path in self.events.glob("*.parquet"))

    def taken_in(self) -> datetime:
        """Return the timestamp up to which the job has taken in all input; the first day if it has not run."""
        last_day = self.last_day()
        return START if last_day is None else datetime.fromisoformat(last_day).replace(tzinfo=UTC) + timedelta(days=1)

    def last_day(self) -> str | None:
        """Return the last day that the job has taken in; None if it has not taken in any."""
        result = self.checkpoints()
        facts = result[-1]["sources"].get(SOURCE, {}) if result else {}
        last_file: str = facts.get("position", {}).get("last", "")
        return last_file.removesuffix(".parquet") or None

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the job's checkpoints as the command line shows them, oldest first."""
        if not (self.home / "var" / "state" / JOB / "checkpoints").exists():
            return []
        answer = json.loads(self._child("checkpoints", "headrace", "checkpoints", JOB, "--json"))
        checkpoints: list[dict[str, Any]] = answer["checkpoints"]
        return sorted(checkpoints, key=lambda checkpoint: int(checkpoint["checkpoint_id"]))

    def seconds_of_micro_batches(self) -> float:
        """Return the time that all micro-batches took, from their plans to their commits."""
        measured = (checkpoint["seconds"] or {} for checkpoint in self.checkpoints())
        return sum(float(seconds.get("run", 0.0)) for seconds in measured)

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
            (f"{headrace} state scan {JOB} --state legs --prefix N14 -n 5", "the last legs of five aircraft"),
            ("make verify-demo", "the tables against a plain computation of all flights"),
            ("make airflow", "this Airflow, with its UI: grid, logs, results, asset events"),
        ):
            self.console.print(f"  [bold]{escape(command):<68}[/] {what}", highlight=False, soft_wrap=True)

    @contextmanager
    def _step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show `name` with a running clock, then its seconds and the notes of the step."""
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
        """Run a child process to its end and return its standard output; raise StepFailedError if it fails."""
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
    command = (sys.executable, "-m", "pipelines.flights.weather_service", "--any-port")
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


def read_board(path: Path) -> tuple[list[tuple[Any, ...]], int]:
    """Return some lines of the board (late flights and open ones), and their total number."""
    import duckdb

    from pipelines.comparison import read_table

    board = read_table(str(path))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("board", board)
        return connection.execute(INTERESTING).fetchall(), board.num_rows


def milliseconds(timestamp: str) -> int:
    """Turn an ISO 8601 timestamp into milliseconds since the epoch."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def verify(demo: Demo) -> int:
    """Compare the sinks with a plain computation of all flights; return the exit code."""
    from pipelines.flights.verify import main as compare

    result = demo.checkpoints()
    if not result:
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
        demo.last_day() or FIRST_DAY,
        "--watermark",
        str(milliseconds(result[-1]["watermark"])),
    )
    return compare([*tables, *read])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, or verify its results; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Also if the parent ignores Ctrl-C, as a shell does for background processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    demo = Demo(Path(os.environ.get("HEADRACE_HOME") or Path.cwd()))
    try:
        if given == ["verify"]:
            return verify(demo)
        demo.run()
    except StepFailedError as error:
        lines = error.log.read_text(errors="replace").splitlines()[-LAST_LINES:] if error.log.exists() else []
        print(f"\n{error}. The last lines of its log:\n\n" + "\n".join(lines), file=sys.stderr)
        print(f"\nAll of it: {error.log}", file=sys.stderr)
        print("Put right what it names and run `make demo` again: it goes on from here.", file=sys.stderr)
        print(
            "`rm -rf var/demo var/data var/lake var/state var/local var/airflow` starts the demo from nothing.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. `make demo` goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
