"""The words of a command from rendered options, and the log lines that a task omits. Nothing here needs Airflow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.airflow._driver_operator import DriverLog
from headrace.airflow._words import SWITCHES, option, plain_words, value_of
from headrace.errors import ConfigError

OPTIONS = st.from_regex(r"[a-z]+(-[a-z]+)?", fullmatch=True).filter(lambda name: f"--{name}" not in SWITCHES)


@given(st.dictionaries(OPTIONS, st.none() | st.just("") | st.integers() | st.text(min_size=1)))
def test_options_with_a_value_stay_as_they_are(options):
    words = plain_words(["run", "job", *(option(name, value) for name, value in options.items())])
    kept = {name: str(value) for name, value in options.items() if str(value) not in {"", "None"}}
    assert words == ["run", "job", *(f"--{name}={value}" for name, value in kept.items())]
    for name in options:
        assert value_of(name, words) == kept.get(name)


@pytest.mark.parametrize("switch", sorted(SWITCHES))
@pytest.mark.parametrize(
    ("value", "is_on"), [("True", True), ("1", True), ("False", False), ("None", False), ("", False)]
)
def test_switch_option_is_present_only_when_on(switch, value, is_on):
    assert plain_words([f"{switch}={value}"]) == ([switch] if is_on else [])


def test_switch_value_other_than_boolean_is_refused():
    with pytest.raises(ConfigError, match="--finish: 'perhaps' is neither true nor false"):
        plain_words(["--finish=perhaps"])


class Lines:
    def __init__(self) -> None:
        self.info_lines = []
        self.error_lines = []

    def info(self, line, *arguments) -> None:
        self.info_lines.append(line % arguments if arguments else line)

    def error(self, line) -> None:
        self.error_lines.append(line)


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("26/01/31 05:00:00 INFO SparkContext: Running Spark version 4.2.0", False),
        ("26/01/31 05:00:00 DEBUG Executor: x", False),
        ("26/01/31 05:00:00 WARN Utils: INFO ", True),
        ("26/01/31 05:00:00 ERROR Executor: boom", True),
        ("2026-01-31T05:00:00Z committed: checkpoint 7: INFO", True),
        ("", True),
    ],
)
def test_only_sparks_chatter_is_left_out(line, is_shown):
    lines = Lines()
    DriverLog(lines, on_spark_ui=print).info(line)
    assert lines.info_lines == ([line] if is_shown else [])


def test_other_levels_and_arguments_pass():
    lines, addresses = Lines(), []
    log = DriverLog(lines, on_spark_ui=addresses.append)
    log.info("Spark-Submit cmd: %s", "spark-submit")
    log.error("boom")
    log.info("spark_ui: Spark UI at http://node:4040")
    assert lines.info_lines == ["Spark-Submit cmd: spark-submit", "spark_ui: Spark UI at http://node:4040"]
    assert (lines.error_lines, addresses) == (["boom"], ["http://node:4040"])
