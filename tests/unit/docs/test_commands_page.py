"""The page of all commands equals their help."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from headrace.cli import app
from tests.jobs.home import PROJECT
from tests.unit.support.command_line import whole_command

PAGE = PROJECT / "docs" / "reference" / "commands.md"


@pytest.mark.slow
def test_page_of_commands_equals_the_help():
    command = [sys.executable, PROJECT / "setup" / "commands_page.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run make reference"


def names_of(command, name):
    """Return the names of a command, or of those of a group, as `headrace state list`."""
    inner = getattr(command, "commands", None)
    return (
        [name] if inner is None else [full for child, sub in inner.items() for full in names_of(sub, f"{name} {child}")]
    )


def test_page_lists_and_describes_each_command():
    page, names = PAGE.read_text(), names_of(whole_command(app), "headrace")
    assert re.findall(r"^\| \[`([^`]+)`\]", page, re.MULTILINE) == names
    assert re.findall(r"^## `([^`]+)`$", page, re.MULTILINE) == names


@pytest.mark.parametrize(
    "line",
    [
        "| `--limit N`, `-n` | Rows at most. Default: `20`. |",
        "| `--run-id ID` | Id of the run. Required. |",
        "| `--mode auto, caught-up or interval` | Take in all input, or one interval. Default: `auto`. |",
        "| `--async`, `--sync` | Let state accesses overlap, or not. Results are the same. |",
        "| `FROM..TO` | Days or timestamps, the first inclusive, the second not. |",
        "headrace explain flights --format mermaid > flights.mmd",
        "Exit codes: 0 all checks hold; 1 a check failed; 2 the configuration is wrong.",
        "More: [alerts](../alerts.md).",
    ],
)
def test_page_shows_help_as_tables_and_blocks(line):
    assert f"\n{line}\n" in PAGE.read_text()
