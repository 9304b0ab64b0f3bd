"""`HEADRACE_LOG=json`: each line that a command writes on stderr is an object."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import logs
from tests.unit.cli.test_streams import ended
from tests.unit.support.doc_pages import blocks_of
from tests.unit.test_logs import KEYS

RUN = "run --runner local --run-id nightly"
TALKATIVE = """        import logging, warnings
        logging.getLogger("tails").info("seen %s", record.tail, extra={"tail": record.tail})
        print("printed", record.tail)
        warnings.warn("an old name")
"""


@pytest.fixture(autouse=True)
def in_json(monkeypatch):
    monkeypatch.setenv(logs.FORMAT, "json")


@pytest.fixture
def one_row(home):
    pq.write_table(pa.table({"tail": ["N1"], "at": [1_359_590_400_000]}), home / "events/2013-01-31.parquet")


def change_code(home, new):
    file = home / "demo_cli_pipeline.py"
    file.write_text(file.read_text().replace("        ...\n", new))


def lines_of(stderr):
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert all(list(line)[: len(KEYS)] == KEYS for line in lines)
    return lines


def test_lines_of_a_run_have_its_position(headrace, home, one_row):
    before = logs.position()  # that of an earlier run in this process
    result = headrace(RUN)
    lines = lines_of(result.stderr)
    assert (result.exit_code, {line["job"] for line in lines}, {line["run"] for line in lines}) == (
        0,
        {"demo"},
        {"nightly"},
    )
    committed = next(line for line in lines if line["kind"] == "committed")
    assert committed["checkpoint"] == committed["fields"]["checkpoint_id"] == 1
    assert committed["fields"]["rows"] == 1
    assert logs.position() == before


@pytest.mark.slow
def test_user_code_has_the_position(home, one_row):
    change_code(home, TALKATIVE)
    lines = [line for line in lines_of(ended(home, RUN, "").stderr) if not line["logger"].startswith("headrace")]
    assert {line["message"].split(":")[-1].split("\n")[0].strip() for line in lines} == {
        "seen N1",
        "printed N1",
        "an old name",
    }
    assert {(line["job"], line["run"], line["checkpoint"]) for line in lines} == {("demo", "nightly", 1)}
    assert next(line for line in lines if line["logger"] == "tails")["fields"] == {"tail": "N1"}


def test_error_of_a_run_is_a_line(headrace, home, one_row):
    change_code(home, "        raise ValueError('no\\ntail [bold] %s')\n")
    result = headrace(RUN)
    (error,) = (line for line in lines_of(result.stderr) if line["level"] == "error")
    assert (result.exit_code, error["kind"], error["fields"]) == (
        5, "error", {"error": "UserFunctionError", "exit_code": 5},
    )  # fmt: skip
    assert "no\ntail [bold] %s" in error["message"]
    assert (error["job"], error["checkpoint"]) == ("demo", 1)


def test_reported_error_is_a_line_as_well(headrace, home, tmp_path):
    result = headrace(f"run nothing --report {tmp_path / 'report.json'}")
    (line,) = lines_of(result.stderr)
    assert line["message"] == json.loads((tmp_path / "report.json").read_text())["message"]
    assert result.stdout == ""


def test_bug_has_its_traceback(headrace, home, monkeypatch):
    monkeypatch.setattr("headrace.cli.arguments.the_job", lambda _: 1 / 0)
    (line,) = lines_of(headrace("status demo").stderr)
    assert line["exception"].endswith("ZeroDivisionError: division by zero")


def test_wrong_words_are_a_line(headrace, home):
    result = headrace("run --no-such-option")
    (line,) = lines_of(result.stderr)
    assert (result.exit_code, line["fields"]["exit_code"]) == (2, 2)


def test_unknown_form_ends_a_command(headrace, home, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, "xml")
    result = headrace(RUN)
    assert (result.exit_code, "HEADRACE_LOG is 'xml'" in result.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_unreadable_lines_fail_no_run(home, one_row, redirection):
    result = ended(home, f"{RUN} --json", redirection)
    assert json.loads(result.stdout)["rows_in"] == 1


def test_name_that_is_no_text_is_a_line(home):
    code = "from headrace.cli import main; main()"
    line = [sys.executable.encode(), b"-c", code.encode(), b"run", b"n\xff\n"]
    environment = {**os.environ, "HEADRACE_HOME": str(home)}
    result = subprocess.run(line, env=environment, capture_output=True, check=False)
    (shown,) = lines_of(result.stderr.decode())
    assert shown["fields"]["exit_code"] == 2


def test_page_shows_real_lines(headrace, home, one_row, monkeypatch):
    text, in_json = (block.text for block in blocks_of("logs"))
    lines = lines_of(headrace(RUN).stderr)
    shown, real = json.loads(in_json), next(line for line in lines if line["kind"] == "committed")
    assert (list(shown), list(shown["fields"])) == (list(real), list(real["fields"]))
    assert {name for name, value in shown.items() if value != real[name]} <= {
        "time",
        "message",
        "job",
        "checkpoint",
        "fields",
    }
    monkeypatch.setenv(logs.FORMAT, "text")
    pq.write_table(pa.table({"tail": ["N2"], "at": [1_359_590_400_001]}), home / "events/2013-02-01.parquet")
    assert without_numbers(headrace(RUN).stderr) == without_numbers(text)


def without_numbers(text):
    return re.sub(r"[\d,]+(\.\d+)?( rows?)?|\d{4}-\d\d-\d\d", "0", text)
