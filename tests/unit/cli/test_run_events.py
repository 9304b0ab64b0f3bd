"""The output of `headrace run` on stderr during a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace import logs
from headrace.cli.run import EventLog, shown_on
from headrace.run.options import Event


def progress(rows):
    message = f"micro-batch 3, by_item: {rows:,} of 20,000 rows, 32 in flight, 5 waiting"
    return Event("progress", message, {"rows": rows, "of": 20_000})


@pytest.fixture
def shown(capsys):
    """Return what a function logs, by line."""

    def lines(work):
        with logs.on_stderr():
            work(EventLog())
        return capsys.readouterr().err.splitlines()

    return lines


def test_log_has_one_progress_line_a_minute(at_nine, shown):
    def three_minutes(log):
        for second in range(180):
            log(progress(second))
            at_nine.advance(1000)

    assert [line.split(":")[4].split()[0] for line in shown(three_minutes)] == ["60", "120"]


def test_log_has_every_other_event(at_nine, shown):
    def three_commits(log):
        for number in range(3):
            log(Event("committed", f"checkpoint {number}"))

    assert shown(three_commits) == [f"2013-02-01T09:00:00Z committed: checkpoint {number}" for number in range(3)]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_shows_a_bar_below_past_events(width, at_nine):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    with shown_on(console) as on_event:
        on_event(Event("opened", "continuing from checkpoint 2"))
        on_event(Event("batch", "micro-batch 3: 20,000 rows"))
        on_event(progress(5000))
        on_event(Event("committed", "checkpoint 3: 20,000 rows in 5.0 s"))
    shown = stream.getvalue()
    assert "2013-02-01T09:00:00Z  continuing from checkpoint 2" in shown
    assert "━" * 5 in shown
    assert {"5,000", "20,000"} <= {*shown.split()}
