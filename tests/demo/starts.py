"""Start the demo often, each time from an empty var/, on a busy machine: `make test-starts`.

    .venv/bin/python setup/environment.py .venv/bin/python -m tests.demo.starts [STARTS] [--at-once N] [--busy N] [--lock FILE]

Two busy loops run beside the starts. With `--at-once`, so many starts go on beside each other, each on a port of its own. A start is good if Airflow has accepted the backfill, the run of the first day has ended
with success, and Ctrl-C then ends the demo without a traceback. The last start is a second one, on what the start before it left:
it goes on to the end of all days, and the tables are compared with a plain computation. Prints a line for each start; the
exit code is 0 if all were good. The input is made once and copied. `--lock` names a file that is locked during each start (or
each group of them), for several that share a machine.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipelines.flights.demo import FIRST_DAY, LAST_DAY

PROJECT = Path(__file__).resolve().parents[2]
STARTS = 20
BUSY_LOOPS = 2
ENDS_WITHIN = 900.0
FIRST_RUN = re.compile(r"run of (\d{4}-\d\d-\d\d): checkpoint")
REFUSED = "Airflow is busy"


def main() -> int:
    """Make all starts; return the exit code."""
    parser = argparse.ArgumentParser(description="Start the demo often, on a busy machine.")
    parser.add_argument("starts", nargs="?", type=int, default=STARTS, help="2 or more: the last is a second start")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--busy", type=int, default=BUSY_LOOPS)
    parser.add_argument("--lock", type=Path)
    options = parser.parse_args()
    # A shell lets background processes ignore Ctrl-C, and their children as well: here the demo gets it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headrace-starts-") as name, busy_loops(options.busy):
        folder = Path(name)
        deliver(folder / "input")
        numbers = range(1, options.starts)
        groups = [numbers[first : first + options.at_once] for first in range(0, len(numbers), options.at_once)]
        good = [outcome for group in groups for outcome in starts_at_once(folder, group, options.lock)]
        with locked(options.lock):
            good.append(report(options.starts, start(folder / "home1", to_the_end=True)))
    print(f"{sum(good)} of {options.starts} starts were good", flush=True)
    return 0 if all(good) else 1


def starts_at_once(folder: Path, numbers: Sequence[int], lock: Path | None) -> list[bool]:
    """Make some starts beside each other, each in a home of its own; return whether they were good."""

    def start_from_nothing(place: int, number: int) -> bool:
        home = folder / f"home{place}"
        make_home(home, folder / "input")
        return report(number, start(home, to_the_end=False))

    with locked(lock), ThreadPoolExecutor(len(numbers)) as lanes:
        return list(lanes.map(start_from_nothing, range(1, len(numbers) + 1), numbers))


@contextmanager
def locked(lock: Path | None) -> Iterator[None]:
    """Hold the lock for the length of a block, if there is one."""
    with ExitStack() as stack:
        if lock is not None:
            fcntl.flock(stack.enter_context(lock.open("a")), fcntl.LOCK_EX)
        yield


def deliver(folder: Path) -> None:
    """Make the input of all starts."""
    command = [
        sys.executable,
        "-m",
        "pipelines.flights.events",
        "--out",
        str(folder),
        "--from",
        FIRST_DAY,
        "--to",
        LAST_DAY,
    ]
    subprocess.run(command, cwd=PROJECT, check=True)


def make_home(home: Path, files: Path) -> None:
    """Make a project folder as after `git clone` and `make setup`: var/ holds the jars alone, and the input."""
    shutil.rmtree(home, ignore_errors=True)
    for name in ("conf", "dags"):
        shutil.copytree(PROJECT / name, home / name)
    (home / "pipelines").symlink_to(PROJECT / "pipelines")
    (home / "var").mkdir()
    for kept in ("jars", "jdk", "classes"):
        if (PROJECT / "var" / kept).exists():
            (home / "var" / kept).symlink_to(PROJECT / "var" / kept)
    shutil.copytree(files, home / "var" / "data" / "flights" / "events")


def start(home: Path, *, to_the_end: bool) -> tuple[bool, float, str]:
    """Start the demo; return whether the start was good, the seconds to the end of the first run, and all that was printed."""
    began = time.monotonic()
    environment = demo_environment(home)
    command = [sys.executable, "-u", "-m", "pipelines.flights.demo"]
    demo = subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines, first_run = [], 0.0
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if not first_run and FIRST_RUN.search(line):
            first_run = time.monotonic() - began
            if not to_the_end:
                demo.send_signal(signal.SIGINT)
    code = demo.wait(ENDS_WITHIN)
    printed = "".join(lines)
    is_good = bool(first_run) and "Traceback" not in printed and code == (0 if to_the_end else 130)
    if is_good and to_the_end:
        verified = subprocess.run(
            [*command, "verify"], cwd=home, env=environment, capture_output=True, text=True, check=False
        )
        is_good, printed = verified.returncode == 0, printed + verified.stdout + verified.stderr
    return is_good, first_run or time.monotonic() - began, printed


def demo_environment(home: Path) -> dict[str, str]:
    """Return the environment of `make` for a project folder."""
    sys.path.insert(0, str(PROJECT / "setup"))
    environment = importlib.import_module("environment").environment
    given = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    python_path = os.pathsep.join(map(str, (PROJECT / "engine", PROJECT)))
    return {**given, **environment(home=home), "PYTHONPATH": python_path}


_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with the process that started it, also if that one was killed."""


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Occupy as many cores for the length of a block."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def report(number: int, outcome: tuple[bool, float, str]) -> bool:
    """Print a line on a start, and all that a bad one printed; return whether it was good."""
    is_good, seconds, printed = outcome
    refusals = [line.strip() for line in printed.splitlines() if REFUSED in line]
    print(f"{number:>3}  {'good' if is_good else 'BAD'}  {seconds:5.0f} s  {'; '.join(refusals)}", flush=True)
    if not is_good:
        print(printed, flush=True)
    return is_good


if __name__ == "__main__":
    raise SystemExit(main())
