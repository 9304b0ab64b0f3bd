"""Starts: commands, each as a process of its own, on a job with 1,000,000 keys, and the import of the DAG files.

    make bench-starts

A run on Spark waits for Spark's own start, from the event `starting` to the event `batch`. Its figure is the rest, from command to
prompt; the start itself is a figure beside it. The import of the DAG files is the time after `import airflow.sdk`.
The output of each command is checked, and at the end the sums in the sink.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks._counting_job import Workload
from benchmarks._report import figure, report
from headrace import local
from headrace.run.options import RunOptions

ROWS, KEYS = 10_000, 1_000_000
DAG_FILES = ("dags/headrace_jobs.py", "dags/headrace_errors.py")
IMPORTS = """
import runpy, sys, time
import airflow.sdk
begun = time.perf_counter()
names = {name for file in sys.argv[1:] for name in runpy.run_path(file)}
assert {"flights", "headrace_maintenance"} <= names, names
print(time.perf_counter() - begun)
"""


class LocalWorkload(Workload):
    """A job whose state is loaded without Spark."""

    def run(self):
        return local.run(self.config, RunOptions(run_id=f"bench-{self.files}"), self._keep)

    def feed_rows(self):
        self.feed([self.random.randrange(self.keys) for _ in range(ROWS)])


class Ended(NamedTuple):
    """A process that has ended with code 0: its seconds, its output, its lines on stderr, and the seconds until each kind of event."""

    seconds: float
    output: str
    messages: str
    events: dict[str, float]


def ended(line, home):
    """Run a command line to its end. Output goes to a file: a pipe would end with the last process that Spark leaves behind."""
    environment = {**os.environ, "HEADRACE_HOME": str(home), "PYTHONPATH": str(Path.cwd())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules; compiling them takes half a second
    with tempfile.TemporaryFile("w+") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(line, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)
        events, messages = {}, []
        for text in process.stderr:
            messages.append(text)
            if len(words := text.split(": ", 1)[0].split()) == 2:
                events.setdefault(words[1], time.perf_counter() - begun)
            if words[1:] == ["committed"]:
                break
        code = process.wait()
        seconds = time.perf_counter() - begun
        process.stderr.close()
        output.seek(0)
        assert code == 0, "".join(messages)
        return Ended(seconds, output.read(), "".join(messages), events)


def headrace(home, *words):
    return ended([str(Path(sys.executable).with_name("headrace")), *words], home)


def help_of(load):
    done = headrace(load.root, "--help")
    assert "Usage: headrace" in done.output
    assert not done.messages, done.messages
    return done.seconds


def state_get(load):
    key = load.random.randrange(load.keys)
    done = headrace(load.root, "state", "get", "counting", f"key-{key:08d}", "--json")
    assert f'"sum": {load.expected[key]}' in done.output, done.output
    assert not done.messages, done.messages
    return done.seconds


def run_rows(load, rows, *options):
    """Run the job; check the number of rows that it takes in."""
    done = headrace(load.root, "run", "counting", "--json", *options)
    assert json.loads(done.output)["rows_in"] == rows, done.output
    return done


def dag_import(home):
    return float(ended([sys.executable, "-c", IMPORTS, *DAG_FILES], home).output)


def spark_run(load):
    """Return the seconds of a run on Spark beyond Spark's own start, and of that start."""
    load.feed_rows()
    done = run_rows(load, ROWS)
    start = done.events["batch"] - done.events["starting"]
    return done.seconds - start, start


def local_run(load):
    load.feed_rows()
    return run_rows(load, ROWS, "--runner", "local").seconds


def goal(name, values, seconds):
    return figure(name, values, "s", goal=f"<= {seconds}", met=lambda value: value <= seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--spark-turns", type=int, default=3)
    options = parser.parse_args()
    load = LocalWorkload(None, Path("var/bench/starts").absolute(), "rocksdb", KEYS)
    (load.root / "var").mkdir()
    (load.root / "var/jars").symlink_to(Path("var/jars").absolute())
    load.load()
    turns = range(options.turns)
    _, *spark_runs = [spark_run(load) for _ in range(1 + options.spark_turns)]  # the first turn compiles modules
    dag_import(Path.cwd())
    beyond, starts = zip(*spark_runs, strict=True)
    figures = [
        goal("headrace --help", [help_of(load) for _ in turns], 0.25),
        goal(f"headrace state get, {KEYS:,} keys", [state_get(load) for _ in turns], 0.7),
        goal("headrace run, nothing to do", [run_rows(load, 0).seconds for _ in turns], 1.5),
        goal(f"headrace run --runner local, {ROWS:,} rows", [local_run(load) for _ in turns], 2),
        goal(f"headrace run, {ROWS:,} rows, beyond Spark's start", beyond, 3),
        figure("Spark's start", starts, "s"),
        goal("import of the DAG files, beyond airflow.sdk", [dag_import(Path.cwd()) for _ in turns], 0.3),
    ]
    load.check()
    report("starts", figures)


if __name__ == "__main__":
    main()
