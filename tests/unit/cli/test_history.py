"""`headrace history`: what stands behind a row of an upserted table."""

from __future__ import annotations

import json

import pytest

from engine.checkpoint.checkpoint import Kind
from engine.state.key_groups import key_group
from tests.unit.cli.conftest import HOUR, moment


def row(key, number, text, *, kind="+U", checkpoint=5, deleted=False):
    name = f'"{key}"'
    return {
        "operator": "latest",
        "key_group": key_group(name.encode(), 128),
        "key": name,
        "sequence_number": number,
        "row": None if deleted else f'{{"tail":"{key}","leg":"{text}","seats":150}}',
        "row_kind": None if deleted else kind,
        "inserted_at": None if deleted else moment(number * HOUR),
        "checkpoint_id": checkpoint,
        "deleted": deleted,
    }


@pytest.fixture
def histories(state):
    state.add("materializer_history", [row("N7", n, f"LEG-{n}", kind="+U" if n else "+I") for n in range(5)])
    state.add("materializer_history", [row("N8", 0, "BOS-JFK")])
    state.commit(Kind.BATCH)
    state.add("materializer_history", [row("N7", 1, "", checkpoint=6, deleted=True)])
    state.commit(Kind.BATCH)
    return state


def test_a_history_is_told_in_order_with_what_differs_and_what_does_not(headrace, histories):
    told = headrace("history N7").stdout
    marked = [line for line in told.splitlines() if line.strip().startswith("*")]
    assert [("LEG-4" in line, "2013" in line or "1970" in line) for line in marked] == [(True, True)]
    assert "latest: 4 rows" in told
    assert 'in all of them  tail "N7", seats 150' in told
    assert "LEG-1" not in told
    assert told.index("LEG-0") < told.index("LEG-2") < told.index("LEG-4")
    assert max(map(len, told.splitlines())) <= 100


def test_a_history_at_an_older_checkpoint_is_as_it_was(headrace, histories):
    assert "LEG-1" in headrace("history N7 --at 5").stdout


def test_of_a_long_history_the_last_rows_are_told(headrace, histories):
    told = headrace("history N7 -n 2").stdout
    assert "the last 2 of them" in told
    assert ("LEG-2" in told, "LEG-3" in told) == (False, True)


def test_machines_get_the_rows_as_json(headrace, histories):
    found = json.loads(headrace("history demo N7 --json").stdout)
    assert found["checkpoint"] == 6
    assert [(one["sequence_number"], one["row"]["leg"], one["row_kind"]) for one in found["rows"]] == [
        (0, "LEG-0", "+I"),
        (2, "LEG-2", "+U"),
        (3, "LEG-3", "+U"),
        (4, "LEG-4", "+U"),
    ]


def test_a_key_without_a_history_is_told_where_to_look(headrace, histories):
    told = headrace("history demo N99")
    assert (told.exit_code, "headrace history demo --largest" in told.stdout) == (0, True)


def test_the_largest_come_first(headrace, histories):
    found = json.loads(headrace("history --largest --json").stdout)["histories"]
    assert [(one["key"], one["rows"]) for one in found[:2]] == [("N7", 4), ("N1", 1)]
    assert "N7" in headrace("history demo --largest -n 1").stdout
    assert "N8" not in headrace("history demo --largest -n 1").stdout


def test_without_a_key_the_command_says_what_it_wants(headrace, histories):
    told = headrace("history")
    assert (told.exit_code, "--largest" in told.stderr) == (2, True)
