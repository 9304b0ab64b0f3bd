"""`headrace diff`, and the lines that `headrace checkpoints` draws."""

from __future__ import annotations

import json

import pytest

from headrace.log.checkpoint import Kind
from tests.unit.support.demo_job import HOUR, START


def test_difference_is_summed_up_then_shown(headrace, state):
    printed = headrace("diff demo --from 1 --to 2").stdout
    assert "from checkpoint 1 (batch, 2013-01-31T01:00:00Z) to 2 (batch, 2013-01-31T02:00:00Z)" in printed
    counts = [line.split() for line in printed.splitlines() if line.split()[:1] == ["keyed_state"]]
    assert counts[0] == ["keyed_state", "legs", "last_leg", "0", "1", "1", "0"]
    assert 'changed  operator=legs  key="N1"  state=last_leg\n    value: "JFK-LAX" -> "LAX-SFO"' in printed
    assert 'gone     operator=legs  key="N2"  state=last_leg\n    value "JFK-BOS"' in printed
    assert "board (sink)" in printed


def test_fields_of_values_are_compared_one_by_one(headrace, state):
    row = {"operator": "legs", "key_group": 1, "key": '"N9"', "state": "legs_seen", "deleted": False}
    for number, value in ((5, {"legs": 1, "to": "LAX", "from": "JFK"}), (6, {"legs": 2, "to": "LAX", "late": True})):
        state.add("keyed_state", [{**row, "value": json.dumps(value), "checkpoint_id": number}])
        state.commit(Kind.BATCH)
    printed = headrace("diff demo").stdout
    assert "value.legs: 1 -> 2" in printed
    assert 'value.from: "JFK" -> (nothing)' in printed
    assert "value.late: (nothing) -> true" in printed
    assert "value.to" not in printed


def test_times_in_values_are_shown_as_times(headrace, state):
    row = {"operator": "legs", "key_group": 1, "key": '"N9"', "state": "seen", "deleted": False}
    for number, at in ((5, 1359608400000), (6, 1359612000000)):
        state.add("keyed_state", [{**row, "value": f'{{"at":{at}}}', "checkpoint_id": number}])
        state.commit(Kind.BATCH)
    printed = headrace("diff demo").stdout
    assert "value.at: 1359608400000 (2013-01-31T05:00:00Z) -> 1359612000000 (2013-01-31T06:00:00Z)" in printed


def test_without_options_the_last_checkpoint_is_shown(headrace, state):
    assert "from checkpoint 3 (savepoint" in headrace("diff demo").stdout


def test_two_equal_checkpoints_differ_in_nothing(headrace, state):
    assert "nothing differs" in headrace("diff demo --from 2 --to 3").stdout


def test_rows_beyond_the_limit_are_counted(headrace, state):
    assert "keyed_state: the first 1 of 3 (more with -n)" in headrace("diff demo --from 0 --to 1 -n 1").stdout


def test_json_has_counts_and_rows(headrace, state):
    document = json.loads(headrace("diff demo --from 1 --to 2 --json").stdout)
    assert (document["from"], document["to"]) == (1, 2)
    table = document["tables"][0]
    assert table["counts"] == [{"operator": "legs", "state": "last_leg", "changed": 1, "gone": 1}]
    assert table["rows"][0]["fields"] == ["value"]
    assert table["rows"][0]["after"]["value"] == "LAX-SFO"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("diff demo --from 99", "no checkpoint 99"),
        ("diff demo --to 0", "first one"),
        ("diff demo --operator nobody", "no operator 'nobody'"),
        ("diff demo --from 2012-01-01", "no checkpoint at 2012-01-01"),
    ],
)
def test_incomparable_checkpoints_are_refused(headrace, state, words, message):
    result = headrace(words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_checkpoints_command_marks_lines_left_by_restore(headrace, state):
    assert "line" not in headrace("checkpoints demo").stdout
    state.commit(Kind.RESTORE, restored_from=1)
    lines = [line.split()[:3] for line in headrace("checkpoints demo").stdout.splitlines()]
    marked = {line[1] if line[0] == "*" else line[2]: line[0] for line in lines if line and line[0] in {"*", "|"}}
    assert marked == {"5": "*", "4": "|", "3": "|", "2": "|", "1": "*", "0": "*"}


def test_ends_may_be_event_times(headrace, state):
    state.commit(Kind.BATCH, watermark=START + 2 * HOUR)
    printed = headrace("diff demo --from-as-of 2013-01-31 --to-as-of 2013-01-31T02:00").stdout
    assert "from checkpoint 4 (compaction" in printed
    assert "to 5 (batch" in printed
