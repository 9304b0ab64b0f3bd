"""Every command takes `--report FILE`, and writes its error there: no caller has to read what is printed."""

from __future__ import annotations

import json

import pytest
from typer.main import get_command

from headrace.cli.application import _paths, application


def test_every_command_takes_a_report_file():
    commands = dict(_paths("", vars(get_command(application()))["commands"]))
    assert {"run", "branch drop", "maintain", "check"} <= commands.keys()
    assert [name for name, command in commands.items() if options_of(command).count("--report") != 1] == []


def options_of(command):
    return [name for parameter in command.params for name in parameter.opts]


@pytest.mark.parametrize(
    "command",
    [
        "verify nope",
        "maintain --state nope",
        "maintain --files nope",
        "branch drop nope old",
        "restore nope --to 1 --why x",
    ],
)
def test_error_is_written_to_the_report(headrace, home, tmp_path, command):
    file = tmp_path / "report.json"
    answer = headrace(f"{command} --report {file}")
    report = json.loads(file.read_text())
    assert (answer.exit_code, report["error"], report["exit_code"]) == (2, "ConfigError", 2)
    assert f"ConfigError: {report['message']}" in answer.stderr


@pytest.mark.parametrize("file", [".", "/", "no/such/folder/report.json"])
def test_place_that_is_no_file_keeps_the_error(headrace, home, file):
    answer = headrace("verify", "nope", "--report", file)
    assert answer.exit_code == 2
    assert "--report: " in answer.stderr
    assert "ConfigError: " in answer.stderr


def test_argument_without_utf8_is_quoted_in_the_report(headrace, home, tmp_path):
    file = tmp_path / "report.json"
    assert headrace("verify", "n\udcff", "--report", str(file)).exit_code == 2
    assert "udcff" in json.loads(file.read_text())["message"]


def test_successful_command_writes_no_error(headrace, state, tmp_path):
    file = tmp_path / "report.json"
    assert headrace(f"status --report {file}").exit_code == 0
    assert not file.exists()
