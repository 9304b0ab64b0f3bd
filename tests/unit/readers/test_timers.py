"""Registered timers."""

from __future__ import annotations

from headrace.readers.waiting import list_timers
from tests.unit.readers.opened_jobs import opened


def test_timers_come_in_time_order(state):
    assert [row["key"] for row in list_timers(opened(1)).dicts()] == ['"N2"', '"N1"']
    assert [row["key"] for row in list_timers(opened()).dicts()] == ['"N1"']
