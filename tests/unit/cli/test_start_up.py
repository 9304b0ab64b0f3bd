"""Commands import only what they need: the time until a command begins is the time of its imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer import core
from typer.testing import CliRunner

from headrace import cli
from headrace.cli.application import application, keep_given_values

_PROGRAM = """
import sys
before = set(sys.modules)
sys.argv = ["headrace", *sys.argv[1:]]
from headrace.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("\\nmodules:", *sorted(set(sys.modules) - before))
"""


def modules_of(*line: str) -> set[str]:
    """Return the modules that a command imports in a new process, which must leave stderr empty."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *line],
        cwd=Path(cli.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr, done.stderr
    return set(done.stdout.rpartition("modules:")[2].split())


def packages(modules: set[str]) -> set[str]:
    """Return the packages of modules, without the standard library."""
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_typer_and_msgspec_alone(option):
    modules = modules_of(option)
    assert packages(modules) <= {
        "headrace",
        "typer",
        "typing_extensions",
        "msgspec",
        "annotated_doc",
        "shellingham",
        "colorama",
    }
    assert not modules & {"asyncio", "ssl", "sqlite3", "email", "importlib.metadata"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "needless"),
    [
        ("jobs", {"pyarrow", "deltalake", "duckdb", "rocksdict"}),
        ("state get N1", {"rocksdict"}),
        ("status", {"rocksdict", "duckdb"}),
        ("checkpoints", {"rocksdict", "duckdb"}),
    ],
)
def test_commands_import_no_needless_packages(state, home, line, needless):
    modules = modules_of(*line.split())
    assert packages(modules) & {"pyspark", "delta", "airflow", "pandas", "pydantic", "croniter", *needless} == set()
    assert not modules & {"asyncio", "pyarrow.dataset"}


def test_commands_without_pipeline_import_no_api():
    assert "headrace.api" not in modules_of("jobs")


@pytest.mark.parametrize(
    ("command", "others"), [("jobs", {"run", "state", "branch"}), ("run", {"jobs", "state", "project"})]
)
def test_command_imports_its_own_module_alone(command, others):
    modules = modules_of(command, "--help")
    assert not modules & {f"headrace.cli.{name}" for name in others}


def commands_of(*line: str) -> list[str]:
    """Return the commands of the application that runs a command line."""
    group: Any = typer.main.get_command(application(line))
    return list(group.commands)


COMMANDS = commands_of()


@pytest.mark.parametrize("name", COMMANDS)
def test_first_word_selects_its_command(name):
    own = commands_of(*name.split(), "--help")
    assert name in own
    assert len(own) < len(COMMANDS)


@pytest.mark.parametrize("line", [[], ["--json"], ["no-such-command"], ["--version", "run"]])
def test_other_words_select_all_commands(line):
    assert commands_of(*line) == COMMANDS


@pytest.fixture
def given_values(monkeypatch):
    """Keep given values in this test alone."""
    parameter = getattr(core, "_TyperParameter", None)
    if parameter is not None and hasattr(parameter, "get_runtime_param"):
        monkeypatch.setattr(parameter, "get_runtime_param", parameter.get_runtime_param)
    return keep_given_values


def _echoed() -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def echo(
        text: str,
        other: Optional[str] = None,  # noqa: UP045 - typer evaluates it at run time
        *,
        count: Annotated[int, typer.Option("--count", min=1)] = 20,
        flag: bool = False,
        several: Annotated[Optional[list[str]], typer.Option("--several")] = None,  # noqa: UP045
        path: Annotated[Optional[Path], typer.Option("--path")] = None,  # noqa: UP045
    ) -> None:
        print(repr((text, other, count, flag, several, path)))

    return app


_WORD = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=5)
_OPTION = st.one_of(
    st.sampled_from([["--flag"], ["--no-flag"], ["--count"], ["--bogus"]]),
    st.tuples(st.just("--count"), st.one_of(st.integers(-2, 30).map(str), _WORD)).map(list),
    st.tuples(st.sampled_from(["--several", "--path"]), _WORD).map(list),
    _WORD.map(lambda word: [word]),
)


def test_given_values_change_no_result(given_values):
    @settings(max_examples=40)
    @given(line=st.lists(_OPTION, max_size=5).map(lambda parts: [word for part in parts for word in part]))
    def same(line):
        lines_before.append((line, outcome(line)))

    def outcome(line):
        result = CliRunner().invoke(_echoed(), line)
        return result.exit_code, result.output

    lines_before: list[tuple[list[str], tuple[int, str]]] = []
    same()
    given_values()
    assert [outcome(line) for line, _ in lines_before] == [before for _, before in lines_before]
