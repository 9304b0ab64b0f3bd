"""Corrections as commands: a row of a history, and the question at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.storage import pandas as late_pandas
from tests.jobs.home import PROJECT
from tests.unit.support.doc_pages import calls_of, shows

JOB = """\
job: legs
pipeline: legs_by_hand:pipeline
sources: {legs: {path: input}}
sinks: {board: {path: lake/board, mode: merge}}
"""
PIPELINE = """\
from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState

class Leg(Struct, frozen=True):
    tail: str
    route: str
    seats: int
    at: Timestamp

class Count(KeyedProcessFunction[Leg, Leg]):
    legs = ValueState("legs", int)

    def process(self, leg, ctx, /):
        self.legs.update((self.legs.value() or 0) + 1)

pipeline = Pipeline("legs")
legs = pipeline.source("legs", Leg, event_time="at", row_kind="kind")
legs.upsert_materialize("latest", primary_key=("tail",)).sink("board")
"""
LEGS = (
    ("+I", "N7", "BOS-JFK", 150),
    ("+I", "N8", "ORD-BOS", 90),
    ("+I", "N7", "JFK-ORD", 150),
    ("+I", "N7", "ORD-SFO", 180),
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "conf/jobs").mkdir(parents=True)
    (tmp_path / "conf/jobs/legs.yaml").write_text(JOB)
    (tmp_path / "conf/clusters").mkdir()
    (tmp_path / "conf/clusters/local.yaml").write_text("master: local[2]\nparallelism: 2\nconnectors: []\n")
    (tmp_path / "legs_by_hand.py").write_text(PIPELINE)
    (tmp_path / "input").mkdir()
    columns = [*zip(*LEGS, strict=True), [1_000 * place for place in range(len(LEGS))]]
    names = ("kind", "tail", "route", "seats", "at")
    pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), tmp_path / "input/1.parquet")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path
    sys.modules.pop("legs_by_hand", None)


@pytest.fixture
def headrace(project):
    """Run a command; the job has run once."""

    def call(*words):
        return CliRunner().invoke(app, words[0].split() if len(words) == 1 else list(words))

    result = call("run legs --runner local")
    assert result.exit_code == 0, result.output
    return call


def shown(headrace):
    rows = json.loads(headrace("sql", "legs", "select tail, route from board order by tail", "--json").stdout)["rows"]
    return {row["tail"]: row["route"] for row in rows}


HEADRACE = [sys.executable, "-c", "from headrace.cli import main; main()"]


def at_terminal(project, command, answers):
    """Run a command at a terminal that gives these answers; return its exit code, and what the terminal shows."""
    own, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'engine'}{os.pathsep}{project}", "TERM": "dumb"}
    os.write(own, answers.encode())
    with subprocess.Popen(
        [*HEADRACE, *command.split()], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=project
    ) as process:
        os.close(theirs)
        output = b""
        while part := _read(own):
            output += part
    os.close(own)
    return process.returncode, output.decode().replace("\r\n", "\n")


def _read(terminal):
    """Return what comes next; nothing when the program has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: nobody holds the other end
        return b""


RETRACT = "history retract legs N7 --row 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "answers", "exit_code", "asks", "route"),
    [
        ("", "y\nnever flew\n", 0, ("Apply? [y/N]", "Why?"), "JFK-ORD"),
        ("--why never", "y\n", 0, ("Apply? [y/N]",), "JFK-ORD"),
        ("", "n\n", 2, ("Apply? [y/N]",), "ORD-SFO"),
        ("", "\n", 2, ("Apply? [y/N]",), "ORD-SFO"),
        ("", "\x04", 2, ("Apply? [y/N]",), "ORD-SFO"),
        ("", "y\n\x04", 2, ("Apply? [y/N]", "Why?"), "ORD-SFO"),
        ("--apply --why never", "", 0, (), "JFK-ORD"),
        ("--apply", "", 2, (), "ORD-SFO"),
        ("--json", "", 0, (), "ORD-SFO"),
    ],
)
def test_terminal_asks_before_it_changes_anything(headrace, project, options, answers, exit_code, asks, route):
    code, output = at_terminal(project, f"{RETRACT} {options}", answers)
    assert code == exit_code, output
    assert [question for question in ("Apply? [y/N]", "Why?") if question in output] == [*asks]
    assert ("Sink 'board' changes with it" in output) is (options not in {"--apply", "--json"})
    assert ("To undo: headrace restore legs --to 1" in output) is (route == "JFK-ORD")
    assert shown(headrace) == {"N7": route, "N8": "ORD-BOS"}


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["n\n", "\x04"])
def test_declined_restore_ends_as_declined_corrections_do(headrace, project, answers):
    code, output = at_terminal(project, "restore legs --to 0 --why never", answers)
    assert (code, "not confirmed: nothing was changed" in output) == (2, True), output
    assert shown(headrace) == {"N7": "ORD-SFO", "N8": "ORD-BOS"}


@pytest.mark.slow
def test_corrections_of_a_branch_name_it(headrace):
    assert headrace("branch create legs trial --why x").exit_code == 0
    assert headrace(f"{RETRACT} --branch trial").stdout.startswith("On branch trial of legs:\n")
    assert json.loads(headrace(f"{RETRACT} --branch trial --json").stdout)["branch"] == "trial"
    assert "On branch" not in headrace(RETRACT).stdout
    done = headrace(f"{RETRACT} --branch trial --apply --why x").stdout
    assert "legs, branch trial: changed, as checkpoint 3." in done
    assert "To undo: headrace restore legs --branch trial --to 2" in done
    assert shown(headrace) == {"N7": "ORD-SFO", "N8": "ORD-BOS"}


def test_input_without_terminal_is_a_dry_run(headrace):
    result = headrace(RETRACT)
    assert (result.exit_code, "Nothing was changed. --apply does it." in result.stdout) == (0, True)
    assert "Apply?" not in result.output
    assert shown(headrace) == {"N7": "ORD-SFO", "N8": "ORD-BOS"}


def test_machines_get_rows_and_sink_changes(headrace):
    document = json.loads(headrace(f"{RETRACT} --json").stdout)
    assert {name: document[name] for name in ("operator", "sink", "key", "row", "ended", "applied", "checkpoint")} == {
        "operator": "latest",
        "sink": "board",
        "key": "N7",
        "row": 2,
        "ended": [],
        "applied": False,
        "checkpoint": None,
    }
    assert [row["row"]["route"] for row in document["history"]] == ["BOS-JFK", "JFK-ORD", "ORD-SFO"]
    assert [(change["kind"], change["row"]["route"]) for change in document["sink_changes"]] == [("+U", "JFK-ORD")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("history retract legs N7", "3 rows are meant"),
        ("history retract legs N7 --field route", "--field takes NAME=VALUE"),
        ("history retract legs N7 --row 1 --sink bord", "no such materializer"),
        ("history retract legs N7 --row 1 --apply", "this needs a reason"),
        ("history retract legs", "KEY"),
    ],
)
def test_wrong_calls_change_nothing(headrace, words, message):
    result = headrace(words)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert len(json.loads(headrace("checkpoints legs --json").stdout)["checkpoints"]) == 2


@pytest.mark.slow
def test_page_takes_a_row_out(headrace):
    for command, printed in calls_of("correcting-state", "headrace history retract"):
        words = command.split(" --why ")
        result = headrace(*words[0].split()[1:], *(["--why", words[1].strip('"')] if len(words) > 1 else []))
        assert result.exit_code == 0, result.output
        assert shows(printed, result.stdout), result.stdout
    assert shown(headrace) == {"N7": "JFK-ORD", "N8": "ORD-BOS"}
