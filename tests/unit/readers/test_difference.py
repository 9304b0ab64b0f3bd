"""Differences between two checkpoints: state by entry, sinks by primary key or by row."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.readers.difference import Change, default_start, differences
from tests.unit.readers.opened_jobs import opened


def compared(before, after, **options):
    """Return the differences by table."""
    jobs = (opened(checkpoint, with_expired=True) for checkpoint in (before, after))
    return {difference.table: difference for difference in differences(*jobs, **options)}


def changes(difference):
    return [(row.change, row.name["key"]) for row in difference.rows]


@pytest.mark.slow
def test_added_gone_and_changed_entries_are_listed(state):
    result = compared(1, 2)
    assert changes(result["keyed_state"]) == [(Change.CHANGED, '"N1"'), (Change.GONE, '"N2"')]
    (changed, removed) = result["keyed_state"].rows
    assert (changed.before["value"], changed.after["value"], changed.fields) == ('"JFK-LAX"', '"LAX-SFO"', ["value"])
    assert removed.after is None
    assert changes(result["timers"]) == [(Change.GONE, '"N2"')]
    assert changes(result["materializer_history"]) == [(Change.ADDED, '"N1"')]
    assert changes(result["quarantine"]) == [(Change.ADDED, "null")]


@pytest.mark.slow
def test_reversed_comparison_gives_the_opposite(state):
    result = compared(2, 1)
    assert changes(result["keyed_state"]) == [(Change.CHANGED, '"N1"'), (Change.ADDED, '"N2"')]
    assert changes(result["timers"]) == [(Change.ADDED, '"N2"')]


def test_counts_are_by_operator_and_state(state):
    (counts,) = compared(0, 1)["keyed_state"].counts
    assert (counts.group, counts.rows) == ({"operator": "legs", "state": "last_leg"}, {Change.ADDED: 3})


def test_limit_cuts_rows_but_not_counts(state):
    result = compared(0, 1, limit=1)["keyed_state"]
    assert (len(result.rows), result.counts[0].rows) == (1, {Change.ADDED: 3})


def test_compaction_compares_whole_tables(state):
    """The compaction has dropped N3, which was expired; no row records that."""
    assert changes(compared(2, 4)["keyed_state"]) == [(Change.GONE, '"N3"')]


def test_expired_entries_are_left_out_unless_asked_for(state):
    (result,) = (result for result in differences(opened(0), opened(1)) if result.table == "keyed_state")
    assert result.counts[0].rows == {Change.ADDED: 2}
    assert "keyed_state" not in {result.table for result in differences(opened(2), opened(4))}


def test_checkpoint_equals_itself(state):
    assert compared(2, 2) == {}
    assert compared(2, 3) == {}


def test_selecting_an_operator_leaves_out_sinks(state):
    assert set(compared(1, 2, operator="latest")) == {"materializer_history"}


@pytest.mark.slow
def test_sinks_without_a_key_are_compared_by_row(state):
    result = compared(1, 2)["board"]
    assert result.is_sink
    assert [(row.change, row.name["leg"]) for row in result.rows] == [
        (Change.GONE, "JFK-LAX"),
        (Change.ADDED, "LAX-SFO"),
    ]


def test_start_is_the_checkpoint_before(state):
    assert default_start(opened(4)) == 3
    with pytest.raises(ConfigError, match="first one"):
        default_start(opened(0))
