"""Lines of a driver in the log of its task."""

from __future__ import annotations

import json
import logging
import sys

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.processors import JSONRenderer

from headrace import logs
from headrace.airflow._command import HeadraceCommand
from headrace.airflow._driver_operator import DriverLog
from headrace.airflow._lines import log_line, object_of
from headrace.logs import JsonLines, RecordParts

UI = "Spark UI at http://127.0.0.1:4040"


class Kept:
    """Keeps what is logged, as Airflow's logger takes it."""

    def __init__(self) -> None:
        self.lines = []

    def __getattr__(self, level):
        return lambda message, **fields: self.lines.append((level, message, fields))


def line_of(message, level="INFO", /, **fields):
    record = logging.makeLogRecord(
        {
            "name": "headrace.cli.run",
            "msg": message,
            "levelname": level,
            "headrace_line": RecordParts("batch", fields, ""),
        }
    )
    return JsonLines().format(record)


@pytest.fixture(autouse=True)
def in_a_run():
    before = logs.position()
    logs.move_to(logs.Position("flights", None, "nightly", 7))
    yield
    logs.move_to(before)


@pytest.mark.parametrize(
    ("level", "shown_as"), [("INFO", "info"), ("WARNING", "warning"), ("ERROR", "error"), ("CRITICAL", "error")]
)
def test_object_keeps_level_message_and_fields(level, shown_as):
    log = Kept()
    log_line(log, line_of("3 rows\nof 4 %s", level, rows=3))
    fields = {"of_logger": "headrace.cli.run", "job": "flights", "run": "nightly", "checkpoint": 7, "kind": "batch"}
    assert log.lines == [(shown_as, "3 rows\nof 4 %s", {**fields, "fields": {"rows": 3}})]


def test_driver_log_finds_the_ui_in_both_forms():
    log, addresses = Kept(), []
    driver = DriverLog(log, on_spark_ui=addresses.append)
    for line in (UI, line_of(UI), "26/01/31 10:00:00 INFO chatter", line_of("26/01/31 10:00:00 INFO ours")):
        driver.info(line)
    assert addresses == ["http://127.0.0.1:4040"] * 2
    assert [message for _, message, _ in log.lines] == [UI, UI, "26/01/31 10:00:00 INFO ours"]


@given(
    st.text() | st.sampled_from(['{"time": "', '{"time": "x", "level": "info"}', '{"time": "x", "level": [], "message": "m"}'])
    | st.dictionaries(st.sampled_from(["time", "level", "message", "logger"]), st.text() | st.integers()).map(json.dumps)
)  # fmt: skip
def test_other_lines_stay_as_they_are(line):
    log = Kept()
    log_line(log, line)
    if object_of(line) is None:
        assert log.lines == [("info", line, {})]
    assert len(log.lines) == 1


@pytest.mark.parametrize("name", ["event", "positional_args", "exc_info", "timestamp", "_record"])
def test_line_with_foreign_keys_is_no_object(name):
    log, line = Kept(), json.dumps({**json.loads(line_of("3 rows")), name: "theirs"})
    log_line(log, line)
    assert log.lines == [("info", line, {})]


def test_output_of_users_need_not_be_utf_8(tmp_path):
    log, command = Kept(), HeadraceCommand([], tmp_path)
    command._words = [sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'caf\\xe9\\nend\\n')"]
    assert command.shown(log) == 0
    assert [line for _, line, _ in log.lines] == ["caf\ufffd", "end"]


def test_airflows_logger_takes_any_object():
    kept = structlog.testing.CapturingLogger()
    log = structlog.wrap_logger(
        kept, processors=[JSONRenderer()], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO)
    )
    for name in ("event", "level", "timestamp", "exc_info"):
        log_line(log, line_of("100 %", **{name: "theirs"}))
    assert [json.loads(call.args[0])["event"] for call in kept.calls] == ["100 %"] * 4
