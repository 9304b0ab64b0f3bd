"""Commands with arbitrary arguments: each gives a result, or exits with code 2 and a sentence; never a traceback."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli import app
from headrace.storage import pandas as late_pandas
from tests.unit.support.damaged_job import damaged_job
from tests.unit.support.fuzzing import examples

LONG_RUNNING = {"run", "doctor", "setup", "new", "top"}
"""They start Spark, ask the machine, write projects, or look until somebody ends them; `run` is tried with what it must refuse."""

TEXTS = [
    *(
        "",
        " ",
        "shop",
        "a",
        "-1",
        "0",
        "1",
        "999999999999999999999",
        "1e3",
        "nan",
        "{",
        "[",
        '"a"',
        '["a", 1]',
        "null",
        "true",
    ),
    *(
        "2013-01-31",
        "2013-13-41",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "12h",
        "-5s",
        "9" * 30,
        "off",
    ),
    *(
        "é",
        "\u202e",
        "\0",
        "a\nb",
        "x" * 300,
        "../../etc",
        "shop.yaml",
        "latest",
        "counts",
        "seen",
        "ask",
        "%s",
        "'; drop",
        "\ud800",
    ),
    *(
        "select 1",
        "select",
        "select * from keyed_state where",
        "select 1; select 2",
        "copy keyed_state to '/tmp/x'",
        "²",
        "١٢",
    ),
]
WORDS = st.sampled_from(TEXTS) | st.text(max_size=6)


def commands(group, path=()):
    """Walk the commands of the application, with their options."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif name not in LONG_RUNNING:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))


@st.composite
def command_lines(draw):
    """Draw a command, mostly with the job's name, and odd words as arguments and option values."""
    path = draw(st.sampled_from(list(COMMANDS)))
    words = [*path, *(["shop"] if draw(st.booleans()) else []), *draw(st.lists(WORDS, max_size=2))]
    options = [
        option for option in COMMANDS[path].params if option.param_type_name == "option" and option.name != "help"
    ]
    for option in draw(st.lists(st.sampled_from(options), max_size=3, unique_by=id)) if options else []:
        words += [option.opts[0]] if option.is_flag else [option.opts[0], draw(WORDS)]
    return words


@pytest.fixture(scope="module")
def shop():
    job = damaged_job("any-arguments")
    yield job
    job.whole()


def outcome(shop, words):
    shop.whole()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_pandas, "without_pandas", lambda: None)
        patch.setenv("HEADRACE_HOME", str(shop.harness.folder))
        patch.chdir(shop.harness.folder)  # a report may be written to any of the texts
        return CliRunner().invoke(app, words)


@pytest.mark.slow
@examples(40)
@given(words=command_lines())
def test_any_arguments_are_answered_or_refused(shop, words):
    result = outcome(shop, words)
    assert result.exit_code in {0, 1, 2, 6, 7}, (words, result.output, result.exception)
    assert "Traceback" not in result.output
    assert result.exit_code == 0 or result.output.strip()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_argument_that_is_no_utf8_is_quoted(shop, options):
    result = outcome(shop, ["status", "\udcff", *options])
    assert result.exit_code == 2
    assert "udcff' is not a valid job name" in result.output


@examples(10)
@given(start=WORDS, end=WORDS)
def test_any_interval_of_a_run_is_refused(shop, start, end):
    result = outcome(
        shop,
        ["run", "shop", "--mode", "interval", "--interval-start", start, "--interval-end", end, "--cluster", "none"],
    )
    assert result.exit_code == 2, (start, end, result.output)
