"""The summary of a backfill: numbers of rows, sinks first, within the length limit of an Airflow note.

Nothing here needs Airflow.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.airflow._difference_summary import summary

REPORT = {
    "job": "flights", "name": "replay", "from": "2013-01-10T00:00:00Z", "to": "2013-01-11T00:00:00Z",
    "outcome": "needs_approval", "fork_id": 9, "waiting": 0,
}  # fmt: skip


def table(name, *, is_sink=False, **counts):
    return {"table": name, "is_sink": is_sink, "counts": [counts]}


def test_summary_shows_sinks_first():
    tables = [table("keyed_state", operator="delay", state="late", changed=3), table("board", is_sink=True, added=1200)]
    lines = summary({**REPORT, "differences": {"tables": tables}}).splitlines()
    assert lines[0] == (
        "Job `flights`, 2013-01-10 to 2013-01-11 and all later, on branch `replay`, which begins at checkpoint 9: needs approval."
    )
    assert lines[4:6] == ["| board (sink) |  | 1,200 | 0 | 0 | 0 |", "| keyed_state | delay late | 0 | 0 | 3 | 0 |"]
    assert lines[-1] == "Rows: `headrace branch diff flights replay`"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"outcome": "unfinished", "differences": None}, "checkpoint 9: unfinished."),
        (
            {"outcome": "waiting", "waiting": 1200, "differences": {"tables": []}},
            "**1,200 elements wait for services.**",
        ),
        ({"outcome": "promoted", "differences": {"tables": []}}, "Nothing differs."),
    ],
)
def test_summary_states_the_branch_status(changes, sentence):
    assert sentence in summary({**REPORT, **changes})


def test_summary_names_a_removed_branch():
    report = {"job": "flights", "name": "replay", "run_id": "r", "outcome": "nothing_open"}
    assert "promoted or dropped already" in summary(report)


NAMES = st.text("abcdefgh_", min_size=1, max_size=60)


@given(
    st.lists(st.builds(table, NAMES, is_sink=st.booleans(), operator=NAMES, added=st.integers(0, 10**9)), max_size=40)
)
def test_summary_fits_into_a_note(tables):
    text = summary({**REPORT, "differences": {"tables": tables}})
    assert len(text) <= 1000
    shown = sum(line.startswith("| ") for line in text.splitlines()[3:])
    assert shown == len(tables) or f"and {len(tables) - shown} more" in text
