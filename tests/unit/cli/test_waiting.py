"""`headrace waiting --calls` and `--held`, over tables written by hand."""

from __future__ import annotations

import json

import pytest

from headrace.log.checkpoint import Kind
from tests.unit.support.demo_job import HOUR, timestamp


def waiting(key, status, *, attempts=0, next_attempt=None, error=None, deleted=False, checkpoint=3):
    return {
        "operator": "weather",
        "key": key,
        "sequence": int(key),
        "status": status,
        "attempts": attempts,
        "first_attempt_at": timestamp(0) if attempts else None,
        "cost_ms": 70,
        "next_attempt_at": None if next_attempt is None else timestamp(next_attempt),
        "last_error": error,
        "element": f'{{"order":"00","timestamp":1,"kind":0,"value":{{"flight":{key}}}}}',
        "result": "[]" if status == "completed" else None,
        "checkpoint_id": checkpoint,
        "deleted": deleted,
    }


@pytest.fixture
def delayed(state):
    """Three elements wait; in the checkpoint after the given id, one of them is gone."""
    late = waiting("7", "waiting for retry", attempts=2, next_attempt=5 * HOUR, error="Unavailable: 503")
    soon = waiting("8", "waiting for retry", attempts=1, next_attempt=2 * HOUR, error="Unavailable: 503")
    state.add("async_requests", [late, soon, waiting("9", "completed", attempts=1)])
    held = {"operator": "legs", "key": '"N1"', "sequence": 1, "checkpoint_id": 3, "deleted": False}
    record = '{"order":"00","timestamp":1,"kind":0,"emitted":0,"value":{"tail":"N1"}}'
    state.add("buffered_requests", [{**held, "block_id": "", "record": record}])
    state.commit(Kind.BATCH)
    before = state.log.last.checkpoint_id
    state.add("async_requests", [waiting("8", None, checkpoint=4, deleted=True)])
    state.commit(Kind.BATCH)
    return before


def json_of(headrace, *arguments):
    return json.loads(headrace(" ".join([*arguments, "--json"])).stdout)


def test_retries_lists_next_attempt_first(headrace, delayed):
    rows = json_of(headrace, "waiting --calls", "--at", str(delayed))["waiting"]
    assert [(row["key"], row["attempts"], row["value"]) for row in rows] == [
        (8, 1, {"flight": 8}),
        (7, 2, {"flight": 7}),
    ]
    assert rows[0]["last_error"] == "Unavailable: 503"
    assert rows[0]["next_attempt"] < rows[1]["next_attempt"]


def test_finished_elements_are_not_listed(headrace, delayed):
    assert [row["key"] for row in json_of(headrace, "waiting --calls")["waiting"]] == [7]


def test_list_ends_with_line_for_each_operator(headrace, delayed):
    output = headrace("waiting --calls").stdout
    assert "Unavailable: 503" in output
    assert "most_attempts" in output


def test_requests_lists_all_unfinished_elements(headrace, delayed):
    rows = json_of(headrace, "waiting --held")["requests"]
    assert [(row["operator"], row["status"]) for row in rows] == [
        ("legs", "held"),
        ("weather", "completed"),
        ("weather", "waiting for retry"),
    ]
    assert rows[0]["value"] == {"tail": "N1"}
    assert [row["operator"] for row in json_of(headrace, "waiting --held", "--operator", "legs")["requests"]] == [
        "legs"
    ]


def test_commands_report_zero_waiting_elements(headrace, state):
    assert "0 waiting" in headrace("waiting --calls").stdout
    assert "0 requests" in headrace("waiting --held").stdout


@pytest.mark.parametrize(
    ("command", "what", "total"), [("waiting --calls", "waiting", 2), ("waiting --held", "requests", 4)]
)
def test_shortened_lists_say_the_total(headrace, delayed, command, what, total):
    assert (
        f"1 of {total} {what}, at checkpoint {delayed} (more with -n)"
        in headrace(f"{command} -n 1 --at {delayed}").stdout
    )
    assert json_of(headrace, command, "-n", "1", "--at", str(delayed))["total"] == total


def test_waiting_counts_by_kind_and_operator(headrace, delayed):
    rows = json_of(headrace, "waiting", "--at", str(delayed))["waiting"]
    assert [(row["waiting"], row["operator"], row["number"]) for row in rows if row["waiting"] != "timers"] == [
        ("answers", "weather", 1),
        ("calls", "weather", 2),
        ("held", "legs", 1),
    ]
    assert rows[1]["first"] == json_of(headrace, "waiting --calls", "--at", str(delayed))["waiting"][0]["next_attempt"]


@pytest.mark.parametrize(
    ("command", "what", "keys"),
    [
        ("waiting --calls --key 7", "waiting", [7]),
        ("waiting --held --key 9", "requests", [9]),
        ("waiting --held --key N1", "requests", ["N1"]),
        ("waiting --timers --key N1", "timers", ["N1"]),
        ("waiting --timers --key N2", "timers", []),
    ],
)
def test_lists_of_one_key(headrace, delayed, command, what, keys):
    document = json_of(headrace, command, "-n", "1")
    assert [row["key"] for row in document[what]] == keys
    assert document["total"] == len(keys)


def test_numbers_of_one_key(headrace, delayed):
    rows = json_of(headrace, "waiting --key N1")["waiting"]
    assert [(row["operator"], row["waiting"], row["number"]) for row in rows] == [
        ("legs", "held", 1),
        ("legs", "timers", 1),
    ]


def test_two_lists_at_once_are_refused(headrace, delayed):
    assert headrace("waiting --calls --timers").exit_code == 2
