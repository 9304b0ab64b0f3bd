"""Lines on standard error, as text and as JSON."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
import threading
import warnings
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import logs

OURS = logging.getLogger("headrace.some.module")
OTHERS = logging.getLogger("pipelines.of_a_user")
KEYS = ["time", "level", "logger", "message", "job", "branch", "run", "checkpoint"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.setattr(logs, "_position", logs.Position())


@pytest.fixture
def in_json(monkeypatch):
    monkeypatch.setenv(logs.FORMAT, "json")


@pytest.fixture
def lines(capsys):
    """Return a function that returns the lines that a function logs."""

    def logged(work):
        with logs.on_stderr():
            work()
        return capsys.readouterr().err.splitlines()

    return logged


def test_line_has_the_position_and_all_keys(in_json, lines):
    def work():
        logs.move_to(logs.Position("flights", "fix", "nightly", 7))
        logs.write(OURS, "3 rows", kind="batch", fields={"rows": 3})

    (line,) = map(json.loads, lines(work))
    assert list(line) == [*KEYS, "kind", "fields"]
    assert line | {"time": None} == {
        "time": None, "level": "info", "logger": "headrace.some.module", "message": "3 rows",
        "job": "flights", "branch": "fix", "run": "nightly", "checkpoint": 7, "kind": "batch", "fields": {"rows": 3},
    }  # fmt: skip
    assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_position_ends_with_the_block(in_json, lines):
    lines(lambda: logs.move(job="flights"))
    assert logs.position() == logs.Position()


def test_text_is_the_message_alone(lines):
    def work():
        logs.write(OURS, "100 %s\nof it", kind="note")
        logs.write(OURS, "short", text="as it was written")
        OURS.warning("%d rows", 3)

    assert lines(work) == ["note: 100 %s", "of it", "as it was written", "3 rows"]


def test_text_leaves_loggers_of_others_alone(lines):
    before = [*logging.getLogger().handlers], logging.getLogger().level, OTHERS.getEffectiveLevel()

    def work():
        assert ([*logging.getLogger().handlers], logging.getLogger().level, OTHERS.getEffectiveLevel()) == before

    lines(work)


def test_nothing_of_the_set_up_stays(in_json, lines):
    ours, root = logging.getLogger("headrace"), logging.getLogger()

    def state():
        of_libraries = logging.getLogger("py4j").level
        return (
            [*ours.handlers],
            ours.level,
            ours.propagate,
            [*root.handlers],
            root.level,
            threading.excepthook,
            of_libraries,
        )

    before = state()
    lines(lambda: None)
    assert state() == before


def test_inner_set_up_doubles_no_line(in_json, lines):
    def work():
        with logs.on_stderr():
            OURS.info("inside")
        OURS.info("behind")
        OTHERS.info("theirs")

    assert [json.loads(line)["message"] for line in lines(work)] == ["inside", "behind", "theirs"]


def test_records_of_users_have_extra_and_traceback(in_json, lines):
    def work():
        try:
            int("no\ntail")
        except ValueError:
            OTHERS.exception("bad row", extra={"row": 4, "kind": "mine", "job": "theirs"})

    (line,) = map(json.loads, lines(work))
    assert (line["level"], line["job"], line["fields"]) == ("error", None, {"row": 4, "kind": "mine", "job": "theirs"})
    assert line["exception"].endswith("ValueError: invalid literal for int() with base 10: 'no\\ntail'")
    assert "kind" not in line


def test_warnings_threads_and_prints_become_lines(in_json, lines):
    def work():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old name", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: 1 / 0, name="mine")
        thread.start()
        thread.join()
        printed = logs.output_of_user_code()
        print("one", "two\nthree", file=printed)
        print("unended", end="", file=printed)

    first, second, *prints = map(json.loads, lines(work))
    assert (first["logger"], first["level"], "old name" in first["message"]) == ("py.warnings", "warning", True)
    assert second["message"] == "thread mine ended with ZeroDivisionError"
    assert [line["message"] for line in prints] == ["one two", "three"]


def test_libraries_show_warnings_alone(in_json, lines):
    def work():
        for name in ("py4j", "deltalake", "opentelemetry.sdk"):
            logging.getLogger(name).info("chatter of %s", name)
            logging.getLogger(name).warning("trouble of %s", name)

    assert [json.loads(line)["message"].split()[0] for line in lines(work)] == ["trouble"] * 3


def test_user_handler_may_write_where_users_print(in_json, lines, monkeypatch):
    def work():
        monkeypatch.setattr(sys, "stdout", logs.output_of_user_code())
        handler = logging.StreamHandler(sys.stdout)
        logging.getLogger().addHandler(handler)
        try:
            OTHERS.info("seen")
        finally:
            logging.getLogger().removeHandler(handler)

    assert [(line["logger"], line["message"]) for line in map(json.loads, lines(work))] == [
        (OTHERS.name, "seen"),
        ("stdout", "seen"),
    ]


def test_calls_of_httpx_are_no_lines(in_json, lines):
    calls = logging.getLogger("httpx")
    assert lines(lambda: calls.info("HTTP Request: GET http://here/?key=secret")) == []
    assert len(lines(lambda: calls.warning("shown"))) == 1


def test_print_without_end_of_line_is_bounded(in_json, lines):
    def work():
        printed = logs.output_of_user_code()
        for _ in range(20_000):
            print(".", end="", file=printed)

    messages = [json.loads(line)["message"] for line in lines(work)]
    assert messages
    assert max(map(len, messages)) < 10_000


@pytest.mark.parametrize("form", ["text", "json"])
def test_logging_set_up_by_users_hides_no_line(form, lines, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, form)
    before = {name for name, log in logging.root.manager.loggerDict.items() if getattr(log, "disabled", False)}

    def work():
        logging.config.dictConfig({"version": 1})
        logs.write(OURS, "it failed", level=logging.ERROR)

    try:
        (line,) = lines(work)
    finally:
        for name, log in logging.root.manager.loggerDict.items():
            if isinstance(log, logging.Logger):
                log.disabled = name in before
    assert "it failed" in line


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")


LOOP: list[object] = []
LOOP.append(LOOP)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
    | st.just(5000).map(lambda digits: 10**digits)
    | st.sampled_from(["\ud800", "a\nb", "[bold]x[/]", "\x1b[31m", "\u2028", Hostile(), LOOP, {3: {4}}]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=8,
)  # fmt: skip


@given(st.text(st.characters()) | st.sampled_from(["%d", "\ud800", Hostile()]), VALUES, st.text(st.characters()))
def test_any_record_is_one_valid_line(message, value, name):
    record = logging.makeLogRecord(
        {"msg": message, "args": (value,), "name": name, "levelname": "INFO", "field": value}
    )
    line = logs.JsonLines().format(record)
    assert line.isascii()
    assert "\n" not in line
    assert list(json.loads(line, parse_constant=pytest.fail))[: len(KEYS)] == KEYS


class Closed:
    def write(self, text):
        raise self.error

    def __init__(self, error):
        self.error = error


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("stream", [None, Closed(OSError(28, "full")), Closed(ValueError("closed file"))])
def test_stream_that_refuses_ends_nothing(form, stream, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, form)
    monkeypatch.setattr(sys, "stderr", stream)
    with logs.on_stderr():
        OURS.info("lost")


def test_stream_is_that_of_the_moment(monkeypatch, capsys):
    with logs.on_stderr(), monkeypatch.context() as context:
        context.setattr(sys, "stderr", Closed(OSError()))
        OURS.info("lost")
        context.undo()
        OURS.info("shown")
    assert capsys.readouterr().err == "shown\n"


@pytest.mark.parametrize(
    ("form", "is_known"), [("", True), ("text", True), ("json", True), ("JSON", False), ("xml", False)]
)
def test_unknown_form_is_refused(form, is_known, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, form)
    if is_known:
        logs.check_format()
    else:
        with pytest.raises(ValueError, match="text or json"):
            logs.check_format()
