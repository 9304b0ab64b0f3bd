"""Write docs/reports/: what `headrace report` writes about a shop, and about a year of flights (`make reports`, ten minutes or more).

Each page is a picture of one run: its seconds are those of the machine that made it. A command runs in a process of its own, whose clock
shows the days of the input, so that watermarks are not years behind. The weather service is away in one week. No JVM starts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
REPORTS: Final = PROJECT / "docs" / "reports"
ENGINE: Final = {"PYTHONPATH": str(PROJECT / "engine"), "PYTHONDONTWRITEBYTECODE": "1"}

OPENS: Final = datetime(2026, 3, 3, 6, tzinfo=UTC)
"""When the shop's first run begins, the morning after its last order."""
PARTS: Final = 10
"""Files of the shop's orders of a day."""
RUN: Final = "run shop --runner local --max-batches 2"
SHOP: Final = (
    RUN,
    RUN,
    'savepoint shop morning --why "before the new prices"',
    RUN,
    RUN,
    'restore shop --to morning --why "wrong prices in the files" --yes',
    RUN,
    'state set shop c00 --field orders=9 --apply --why "ordered twice by mistake"',
    'branch create shop vouchers --why "vouchers for all"',
    RUN,
    "run shop --runner local --branch vouchers",
    'branch promote shop vouchers --why "everybody likes them"',
    RUN,
    "run shop --runner local",
    "maintain shop --state",
    'branch create shop try_it --at 4 --why "another rule"',
)

FIRST_DAY: Final = date(2013, 1, 1)
DAYS: Final = 365
WEEK: Final = 7
AWAY: Final = 8
"""Week in which no weather service answers."""


def main() -> None:
    """Write both pages."""
    REPORTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shop(Path(folder))
        flights(Path(folder) / "flights")


def shop(folder: Path) -> None:
    """Write the page of the project that `headrace new shop` makes: a restore, an edit, and two branches."""
    import pyarrow.parquet as pq

    headrace(folder, OPENS, "new shop")
    home = folder / "shop"
    job = home / "conf" / "jobs" / "shop.yaml"
    text = job.read_text()
    lines = [line for line in text.splitlines() if line.startswith("    interval:")]
    job.write_text(text.replace(lines[0], "    max_files_per_batch: 1"))
    for file in sorted((home / "input" / "orders").iterdir()):
        orders = pq.read_table(file)
        size = -(-orders.num_rows // PARTS)
        for part in range(PARTS):
            pq.write_table(orders.slice(part * size, size), file.with_name(f"{file.stem}-{part}.parquet"))
        file.unlink()
    for hours, command in enumerate(SHOP):
        headrace(home, OPENS + timedelta(hours=hours), command)
    report(home, "shop", OPENS + timedelta(hours=len(SHOP)))


def flights(home: Path) -> None:
    """Write the page of a year, a run for each week, in the early morning behind its last day."""
    for name in ("conf", "pipelines"):
        shutil.copytree(PROJECT / name, home / name)
    job = home / "conf" / "jobs" / "flights.yaml"
    job.write_text(re.sub("max_files_per_batch: [0-9]+", "max_files_per_batch: 1", job.read_text()))
    events = home / "var" / "data" / "flights" / "events"
    events.mkdir(parents=True)
    files = delivered(home)
    with weather_service(home) as url:
        for week, start in enumerate(range(0, DAYS, WEEK), 1):
            own = files[start : start + WEEK]
            for file in own:
                shutil.copy(file, events)
            weather = "http://127.0.0.1:9" if week == AWAY else url
            headrace(home, morning(start + len(own)), "run flights --runner local", WEATHER_URL=weather)
        report(home, "flights", morning(DAYS) + timedelta(hours=2))


def morning(day: int) -> datetime:
    """Return four o'clock of the day after a day."""
    start = datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, 4, tzinfo=UTC)
    return start + timedelta(days=day)


def delivered(home: Path) -> Sequence[Path]:
    """Return the files of the days, in order. They are written by the copy of the pipelines in the home."""
    sys.path.insert(0, str(home))
    from pipelines.flights.events import write_events

    folder = home / "delivered"
    last = FIRST_DAY + timedelta(days=DAYS - 1)
    write_events(folder, first=FIRST_DAY, last=last + timedelta(days=1), through=last, seed=13)
    return sorted(folder.glob("*.parquet"))


@contextmanager
def weather_service(home: Path) -> Iterator[str]:
    """Start the weather service and yield its address; it ends with the block."""
    ready = home / "weather.url"
    command = [sys.executable, "-m", "pipelines.flights.weather_service", "--port", "0", "--ready-file", str(ready)]
    with subprocess.Popen(command, cwd=home, env={**os.environ, **ENGINE}) as process:
        try:
            while not ready.exists():
                if process.poll() is not None:
                    sys.exit("the weather service has ended")
                time.sleep(0.1)
            yield ready.read_text().strip()
        finally:
            process.terminate()


def report(home: Path, job: str, now: datetime) -> None:
    """Write a job's page to the folder of the pages."""
    headrace(home, now, f"report {job} --out {shlex.quote(str(REPORTS / f'{job}.html'))}")


def headrace(home: Path, now: datetime, command: str, **environment: str) -> None:
    """Run a command in a project as if it were that time; end the program where it fails."""
    print(f"{now:%d %b %H:%M} headrace {command}", flush=True)
    child = [sys.executable, __file__, now.isoformat(), *shlex.split(command)]
    known = {**os.environ, **ENGINE, "HEADRACE_HOME": str(home), **environment}
    if command.startswith("new "):
        del known["HEADRACE_HOME"]
    done = subprocess.run(child, cwd=home, env=known, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}exit code {done.returncode}")


def command_at(now: datetime, words: Sequence[str]) -> None:
    """Be the command `headrace` with a clock that begins at a time and goes as the system's."""
    from headrace import clock
    from headrace.cli import app

    sys.path.remove(str(Path(__file__).parent))
    ahead = int(now.timestamp() * 1000) - clock.now()

    class _Clock(clock.SystemClock):
        def now(self) -> int:
            return super().now() + ahead

    clock.use(_Clock())
    sys.argv = ["headrace", *words]
    app()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        command_at(datetime.fromisoformat(sys.argv[1]), sys.argv[2:])
    else:
        main()
