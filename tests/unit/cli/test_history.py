"""`headrace history`: the history behind a row of an upserted table."""

from __future__ import annotations

import json

import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.cli.state.histories import _of_operator
from headrace.log.checkpoint import Kind
from headrace.state.key_groups import key_group
from tests.unit.support.demo_job import HOUR, timestamp


def row(key, number, text, *, kind="+U", checkpoint=5, deleted=False):
    name = f'"{key}"'
    return {
        "operator": "latest",
        "key_group": key_group(name.encode(), 128),
        "key": name,
        "sequence_number": number,
        "row": None if deleted else f'{{"tail":"{key}","leg":"{text}","seats":150}}',
        "row_kind": None if deleted else kind,
        "inserted_at": None if deleted else timestamp(number * HOUR),
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


def test_history_shows_rows_in_order_with_differences(headrace, histories):
    output = headrace("history N7").stdout
    marked = [line for line in output.splitlines() if line.strip().startswith("*")]
    assert [("LEG-4" in line, "2013" in line or "1970" in line) for line in marked] == [(True, True)]
    assert "latest: 4 rows" in output
    assert 'in all of them  tail "N7", seats 150' in output
    assert "LEG-1" not in output
    assert output.index("LEG-0") < output.index("LEG-2") < output.index("LEG-4")
    assert max(map(len, output.splitlines())) <= 100


def test_history_at_older_checkpoint_is_unchanged(headrace, histories):
    assert "LEG-1" in headrace("history N7 --at 5").stdout


def test_long_history_shows_last_rows(headrace, histories):
    output = headrace("history N7 -n 2").stdout
    assert "the last 2 of them" in output
    assert ("LEG-2" in output, "LEG-3" in output) == (False, True)


def test_rows_longer_than_screen_are_cut(headrace, state):
    state.add("materializer_history", [row("N7", 0, "LEG"), row("N7", 1, "x" * 600)])
    state.commit(Kind.BATCH)
    output = headrace("history N7").stdout
    assert "602 characters" in " ".join(output.split())
    assert output.count("x") < 550
    assert "x" * 600 in headrace("history N7 --json").stdout


@pytest.mark.parametrize(("upsert_key", "is_told"), [(("leg",), True), (("tail",), False), (None, False)])
def test_history_warns_when_sink_may_show_other_row(upsert_key, is_told):
    class Leg(Struct, frozen=True):
        tail: str
        leg: str
        at: Timestamp

    source = Pipeline("p").source("legs", Leg, event_time="at")
    operator = source.upsert_materialize("latest", primary_key=("tail",), upsert_key=upsert_key).operators[-1]
    rows = [{**row("N7", number, f"LEG-{number}"), "inserted_at": None} for number in range(2)]
    output = [part for part in _of_operator("latest", operator, rows, 20) if isinstance(part, str)]
    assert any("updated in place" in part for part in output) is is_told


def test_whole_number_finds_float_key(headrace, state):
    key = {"key": "5.0", "key_group": key_group(b"5.0", 128)}
    state.add("materializer_history", [{**row("N7", 0, "LEG"), **key}])
    state.commit(Kind.BATCH)
    assert "latest: 1 row" in headrace("history 5").stdout


def test_machines_get_the_rows_as_json(headrace, histories):
    document = json.loads(headrace("history demo N7 --json").stdout)
    assert document["checkpoint"] == 6
    assert [(row["sequence_number"], row["row"]["leg"], row["row_kind"]) for row in document["rows"]] == [
        (0, "LEG-0", "+I"),
        (2, "LEG-2", "+U"),
        (3, "LEG-3", "+U"),
        (4, "LEG-4", "+U"),
    ]


def test_key_without_history_gets_hint(headrace, histories):
    output = headrace("history demo N99")
    assert (output.exit_code, "headrace history demo --largest" in output.stdout) == (0, True)


@pytest.mark.slow
def test_largest_histories_come_first(headrace, histories):
    document = json.loads(headrace("history --largest --json").stdout)["histories"]
    assert [(row["key"], row["rows"]) for row in document[:2]] == [("N7", 4), ("N1", 1)]
    assert "N7" in headrace("history demo --largest -n 1").stdout
    assert "N8" not in headrace("history demo --largest -n 1").stdout


def test_missing_key_is_explained(headrace, histories):
    output = headrace("history")
    assert (output.exit_code, "--largest" in output.stderr) == (2, True)
