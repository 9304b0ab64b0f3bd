"""Names and notes of backfills' branches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.commit.backfill_branches import asked_of, backfill_note, default_name
from headrace.commit.branches import Branch, BranchStatus
from headrace.names import is_name
from headrace.sources.interval import Interval

DAY = 86_400_000
MOMENTS = st.integers(0, 4_000_000_000_000)


def noted(note):
    return Branch(name="again", status=BranchStatus.OPEN, fork_id=0, versions={}, sinks={}, created_at=0, note=note)


@given(MOMENTS, MOMENTS)
def test_note_names_the_interval(one, other):
    asked = Interval(min(one, other), max(one, other) + 1)
    assert asked_of(noted(backfill_note(asked))) == asked
    assert is_name(default_name(asked))


@pytest.mark.parametrize("note", [None, "another rule", "backfill of this to that"])
def test_other_notes_belong_to_no_backfill(note):
    assert asked_of(noted(note)) is None


def test_name_has_times_only_if_needed():
    assert default_name(Interval(0, 2 * DAY)) == "backfill_19700101_19700103"
    assert default_name(Interval(0, DAY // 2)) == "backfill_19700101t000000_19700101t120000"
