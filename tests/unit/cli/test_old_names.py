"""Old names of commands: they do the same as their new ones, and say these; nothing else names them."""

from __future__ import annotations

import re

import pytest

from headrace.cli.application import renamed
from tests.jobs.home import PROJECT

OLD_NAME = re.compile(r"headrace (retries|requests|timers|compact|vacuum)\b")
PLACES = (
    "engine",
    "docs",
    "dags",
    "pipelines",
    "conf",
    "setup",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
)
SECTION = re.compile(r"^### Old names\n.*?(?=^##)", re.MULTILINE | re.DOTALL)

LINES = {
    "retries": "waiting --calls",
    "retries demo": "waiting demo --calls",
    "retries demo -n 1 --json": "waiting demo --calls -n 1 --json",
    "requests --operator legs": "waiting --held --operator legs",
    "requests nope": "waiting nope --held",
    "timers demo --all": "waiting demo --timers --all",
    "timers --at 4 --json": "waiting --timers --at 4 --json",
    "compact nope --every 3": "maintain nope --state --every 3",
    "compact demo --sinks --dry-run": "maintain demo --sinks --dry-run",
    "compact --dry-run": "maintain --state --dry-run",
    "vacuum demo --dry-run": "maintain demo --files --dry-run",
    "vacuum --dry-run --json": "maintain --files --dry-run --json",
    "vacuum --every 3": "maintain --files --every 3",
}


@pytest.mark.parametrize(("old", "new"), LINES.items())
def test_old_name_does_the_same_and_says_it(headrace, state, old, new):
    before, now = headrace(old), headrace(new)
    assert (before.stdout, before.exit_code) == (now.stdout, now.exit_code)
    assert before.stderr == f"note: headrace {old.split()[0]} is now: headrace {new}\n{now.stderr}"


def test_words_that_a_shell_divides_are_quoted(headrace, state):
    result = headrace("timers", "demo", "--operator", "two words")
    assert "is now: headrace waiting demo --timers --operator 'two words'\n" in result.stderr


def test_help_shows_new_names_alone(headrace):
    names = re.findall(r"^  (\w+)  ", headrace("--help").stdout, re.MULTILINE)
    assert {"waiting", "maintain"} <= {*names}
    assert {*names} & {"retries", "requests", "timers", "compact", "vacuum"} == set()


def test_job_may_have_an_old_name():
    assert renamed(["status", "timers"]) == ["status", "timers"]
    assert renamed(["timers", "timers"]) == ["waiting", "timers", "--timers"]


def texts():
    for place in PLACES:
        path = PROJECT / place
        files = path.rglob("*") if path.is_dir() else [path]
        yield from (
            (file, file.read_text()) for file in files if file.suffix in {".py", ".md", ".yaml", ".html", ".sh"}
        )


def test_only_its_own_section_names_old_ones():
    named = [
        f"{file.relative_to(PROJECT)}: {match[0]}"
        for file, text in texts()
        for match in OLD_NAME.finditer(SECTION.sub("", text) if file.name == "cli.md" else text)
    ]
    assert named == []


def test_section_has_all_old_names():
    section = SECTION.search((PROJECT / "docs/cli.md").read_text())[0]
    rows = dict(re.findall(r"^\| `headrace (\w+) JOB` \| `headrace ([^`]*)`", section, re.MULTILINE))
    assert rows == {
        old: " ".join(renamed([old, "JOB"])) for old in ("retries", "requests", "timers", "compact", "vacuum")
    }
