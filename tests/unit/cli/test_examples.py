"""The examples in the help of all commands, and commands that messages advise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.commit.input_report import InputKind, InputRemark, warnings_of
from tests.unit.support.memory_job import memory_config


def command_paths(command, path=()):
    commands = getattr(command, "commands", {})
    yield from ([path] if not commands else [])
    for name, inner in commands.items():
        yield from command_paths(inner, (*path, name))


@pytest.mark.parametrize("path", list(command_paths(get_command(app))), ids=" ".join)
def test_each_example_has_its_own_line(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*path, "--help"]).stdout
    assert "Example:" in shown
    assert not re.search(r"\S {3,}headrace\b", shown)


@pytest.mark.parametrize("kind", [InputKind.CHANGED, InputKind.GONE, InputKind.LATE])
def test_advised_backfill_has_all_that_it_needs(kind):
    config = memory_config("advice")
    (warning,) = warnings_of(
        config, [InputRemark(kind, source, "2026-03-01.json") for source in list(config.sources)[:1]]
    )
    (advised,) = re.findall(r"'headrace (backfill [^']*)'", warning.message)
    result = CliRunner().invoke(app, [*advised.split(), "--help"])
    assert result.exit_code == 0
    assert {"--from", "--to"} <= {*advised.split()}


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
WITHOUT_JOB = re.compile(
    r"headrace (?:checkpoints|input|retries|quarantine|reconcile|vacuum|compact|restore|erase)['`)]"
)
ENGINE = Path(headrace.__file__).parent


@pytest.mark.parametrize(
    "folder", ["async_io", "commit", "edits", "log", "materializer", "readers", "run", "sources", "storage"]
)
def test_advised_commands_name_their_job(folder):
    """A command without a job is refused where there are several."""
    for module in sorted((ENGINE / folder).rglob("*.py")):
        tree = ast.parse(module.read_text())
        bodies = [node.body[0] for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node)]
        documented = {statement.value for statement in bodies if isinstance(statement, ast.Expr)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in documented]
        assert not [text for text in texts if isinstance(text, str) and WITHOUT_JOB.search(text)], module.name
