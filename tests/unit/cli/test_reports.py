"""A command returns one report: people read it as text, machines as one JSON document."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import logs
from headrace.cli.application import _Commands, _paths, application
from headrace.cli.output import plain_report, print_text
from headrace.errors import SinkMismatchError
from headrace.report import Drawing, Fact, Note, Report, Stored, Table, Time, facts

START = 1_359_590_400_000
COMMANDS = dict(_paths("", vars(typer.main.get_command(application()))["commands"]))


def text_of(report, capsys):
    print_text(report)
    return capsys.readouterr()


def test_every_command_takes_json_once():
    options = {name: [word for option in command.params for word in option.opts] for name, command in COMMANDS.items()}
    assert [name for name, words in options.items() if words.count("--json") != 1] == []


def test_facts_are_shown_only_with_labels(capsys):
    report = Report(*facts(job="demo"), Fact("rows_in", 1234, "rows in"), Fact(None, "yes", "done"))
    assert plain_report(report) == {"job": "demo", "rows_in": 1234}
    lines = [line.split() for line in text_of(report, capsys).out.splitlines()]
    assert [line for line in lines if len(line) > 1] == [["rows", "in", "1,234"], ["done", "yes"]]


def test_table_shows_its_columns_and_keeps_all_values(capsys):
    rows = [{"name": "a", "at": Time(START), "rows": 1000}]
    report = Report(Table("jobs", {"name": "job", "rows": "rows in"}, rows))
    assert plain_report(report) == {"jobs": [{"name": "a", "at": datetime(2013, 1, 31, tzinfo=UTC), "rows": 1000}]}
    words = text_of(report, capsys).out.split()
    assert [word for word in words if "─" not in word] == ["job", "rows", "in", "a", "1,000"]


def test_empty_table_is_not_shown(capsys):
    assert text_of(Report(Table("rows", ("a",), []), None, "no rows"), capsys).out == "no rows\n"


def test_headings_may_be_the_same(capsys):
    assert text_of(Report(Table.shown(("a", "a"), [(1, 2)])), capsys).out.split()[-2:] == ["1", "2"]


def test_warnings_go_to_stderr(capsys):
    with logs.on_stderr():
        printed = text_of(Report("text", Note("beware", "warning")), capsys)
    assert (printed.out, printed.err) == ("text\n", "note: beware\n")


def test_drawings_know_the_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "77")
    assert text_of(Report(Drawing(lambda width: [f"{width}", "x" * 90])), capsys).out == f"77\n{'x' * 90}\n"


@pytest.mark.parametrize(
    ("stored", "plain"),
    [
        (Stored('{"a":1}'), b'{"a":1}'),
        (Stored("no JSON"), "no JSON"),
        (Stored('"N7"', is_key=True), b'"N7"'),
        (Stored('{"a":1}', is_raw=True), '{"a":1}'),
        (Stored(7), 7),
    ],
)
def test_stored_json_is_json_for_machines(stored, plain):
    (value,) = plain_report(Report(*facts(value=stored))).values()
    assert (bytes(value) if isinstance(plain, bytes) else value) == plain


@given(st.integers(-(10**17), 10**17))
def test_any_timestamp_can_be_read(milliseconds):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", str(Time(milliseconds)))


def ended(report, *options):
    """Return the result of a command that returns a report."""
    app = typer.Typer(cls=_Commands)
    app.callback()(lambda: None)
    app.command("jobs")(lambda: report)
    return CliRunner().invoke(app, ["jobs", *options])


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_report_decides_the_exit_code(options):
    assert ended(Report("text", *facts(ok=False), exit_code=7), *options).exit_code == 7


def test_error_comes_after_the_text():
    result = ended(Report("what there is", error=SinkMismatchError("no way")))
    assert (result.exit_code, result.stdout) == (10, "what there is\n")
    assert "SinkMismatchError: no way" in result.stderr


def test_error_is_the_whole_document():
    result = ended(Report(*facts(job="demo"), error=SinkMismatchError("no way")), "--json")
    assert json.loads(result.stdout) == {"error": "SinkMismatchError", "message": "no way"}
