"""Every exception ends with one message and the exit code for the person who must act."""

from __future__ import annotations

import json

import pytest

from headrace import __version__, errors
from headrace.cli import status
from headrace.errors import (
    ConfigError,
    HeadraceError,
    StateSchemaError,
    StorageError,
    UserFunctionError,
    keep_committed,
)


def raising(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(status, "load", fail)


CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, HeadraceError)]


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls not in {HeadraceError, UserFunctionError}])
def test_each_class_ends_with_its_code(headrace, monkeypatch, cls):
    raising(monkeypatch, cls("what and why"))
    result = headrace("checkpoints")
    assert result.exit_code == cls.exit_code
    assert f"{cls.__name__}: what and why" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run", True),
        ("backfill --from 2026-01-01 --to 2026-01-02", True),
        ("restore --to 1 --why x", True),
        ("checkpoints", False),
    ],
)
def test_commands_that_start_work_say_that_none_was(headrace, command, says):
    name, _, options = command.partition(" ")
    result = headrace(f"{name} nope {options}")
    assert (result.exit_code, "(known: demo). Nothing was started." in result.stderr) == (2, says)


def test_machines_read_that_nothing_was_started(headrace, tmp_path):
    result = headrace(f"run nope --json --report {tmp_path}/report.json")
    assert json.loads((tmp_path / "report.json").read_text())["message"].endswith("Nothing was started.")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("no job. Nothing was run."), "no job. Nothing was run."),
        (ConfigError("two:\n  a\n  b"), "two:\n  a\n  b\nNothing was started."),
        (StateSchemaError("other type"), "other type. Nothing was started."),
        (StorageError("disk full"), "disk full"),
    ],
)
def test_sentence_is_added_where_it_is_missing(error, text):
    assert error.text_of_start == text
    keep_committed(error, [])
    assert error.text_of_start == str(error)


def test_errors_for_machines_are_one_object_on_stdout(headrace, monkeypatch):
    raising(monkeypatch, StorageError("disk full"))
    result = headrace("checkpoints --json")
    assert json.loads(result.stdout) == {"error": "StorageError", "message": "disk full"}
    assert (result.exit_code, result.stderr) == (8, "")


def test_unknown_exception_is_reported_with_traceback(headrace, monkeypatch):
    raising(monkeypatch, ZeroDivisionError("oh"))
    result = headrace("checkpoints --json")
    assert (result.exit_code, json.loads(result.stdout)["error"]) == (70, "EngineBug")
    assert "Traceback" in result.stderr


def test_interrupted_command_ends_with_130(headrace, monkeypatch):
    raising(monkeypatch, KeyboardInterrupt())
    assert headrace("checkpoints").exit_code == 130


def test_mistyped_option_is_json_too(headrace):
    result = headrace("status --jsno --json")
    assert (result.exit_code, json.loads(result.stdout)["error"]) == (2, "ConfigError")


@pytest.mark.parametrize("command", ["", "state"])
def test_command_without_a_verb_shows_its_help(headrace, command):
    assert "Usage: " in headrace(*command.split(), "--help").stdout


def test_version_is_the_packages(headrace):
    assert headrace("--version").stdout.strip() == __version__


def commands():
    import typer

    from headrace.cli import app

    def walk(command, name):
        if not getattr(command, "commands", None):
            yield name, command
        for child, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, f"{name} {child}")

    return dict(walk(typer.main.get_command(app), "headrace"))


@pytest.mark.parametrize("name", commands())
def test_help_has_example_exit_codes_and_json(name):
    command = commands()[name]
    assert f"Example:  {name}" in command.help
    assert "Exit codes: 0" in command.help
    assert any("--json" in parameter.opts for parameter in command.params)
