"""The types of stored state in the output of `state list` and `check`."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest

from headrace.commit.schema_check import DeclaredState
from headrace.log.checkpoint import Kind
from headrace.log.declared import HISTORY_STATE, StateSchema
from headrace.log.facts import NO_DECLARATIONS
from headrace.state.type_schema import type_schema_of


@pytest.fixture
def recorded(state):
    """Checkpoint 5, which records types: by default the types that the pipeline declares."""

    def record(last_leg=str, **more):
        legs = {"last_leg": StateSchema(kind="value", types=(type_schema_of(last_leg),)), **more}
        schemas = {
            "legs": legs,
            "latest": {HISTORY_STATE: DeclaredState(HISTORY_STATE, Event, type_schema_of(Event)).stored()},
        }
        state.commit(Kind.BATCH, declared=NO_DECLARATIONS.with_states(schemas))

    return record


class Event(msgspec.Struct, frozen=True):
    tail: str
    at: int


@pytest.mark.slow
def test_state_list_shows_kinds_and_types(headrace, recorded):
    class Board(msgspec.Struct):
        tail: str
        carriers: dict[str, list[int]]
        delayed_by_minutes_at_the_gate: int | None = None

    recorded(Board)
    document = {row["state"]: row for row in json.loads(headrace("state list demo --json").stdout)["states"]}
    assert (document["last_leg"]["kind"], document["event_time"]["kind"], document["history"]["kind"]) == (
        "value",
        "timers",
        "history",
    )
    assert document["last_leg"]["type"].startswith("Board(tail: str, carriers: dict[str, list[int]], delayed_by")
    shown = headrace("state list demo").stdout
    assert " Board\n" in shown
    assert "tail: str" not in shown


def test_state_no_longer_declared_is_marked(headrace, state):
    removed = StateSchema(kind="value", types=(type_schema_of(str),), removed=True)
    state.commit(Kind.BATCH, declared=NO_DECLARATIONS.with_states({"legs": {"last_leg": removed}}))
    document = {row["state"]: row["kind"] for row in json.loads(headrace("state list demo --json").stdout)["states"]}
    assert document["last_leg"] == "value, removed"


def test_state_from_before_types_were_recorded_has_none(headrace, state):
    document = json.loads(headrace("state list demo --json").stdout)["states"]
    assert {(row["type"], row["kind"]) for row in document} == {(None, None), (None, "timers")}


@pytest.mark.parametrize(
    "command", ["state get demo N1", "state scan demo", "state history demo N1", "state expired demo"]
)
@pytest.mark.parametrize(("name", "is_known"), [("last_legs", False), ("last_leg", True), ("history", True)])
def test_unknown_state_is_refused_with_known_ones(headrace, recorded, command, name, is_known):
    recorded()
    result = headrace(f"{command} --state {name}")
    assert result.exit_code == (0 if is_known else 2)
    refusal = "job 'demo' has no state 'last_legs'; did you mean 'last_leg'? (it has: history, last_leg)"
    assert (refusal in result.stderr) is not is_known


def test_state_of_another_operator_is_refused(headrace, recorded):
    recorded()
    result = headrace("state get demo N1 --operator latest --state last_leg")
    assert (result.exit_code, "operator 'latest' of job 'demo' has no state 'last_leg'" in result.stderr) == (2, True)


def test_stored_state_is_known_without_its_type(headrace, state):
    assert headrace("state get demo N1 --state last_leg").exit_code == 0


def test_check_confirms_compatible_state_types(headrace, recorded):
    recorded()
    output = findings(headrace("check demo --json"))
    assert output["state"] == ("ok", "2 declared, and all stored values fit", "")


def test_check_names_field_and_types_that_conflict(headrace, recorded):
    recorded(last_leg=int)
    result = headrace("check demo --json")
    outcome, detail, _ = findings(result)["state"]
    assert (result.exit_code, outcome) == (1, "fail")
    assert "operator 'legs', state 'last_leg': it is stored as int, and declared as str" in detail


def test_check_announces_a_migration(headrace, recorded, home):
    recorded(last_leg=int)
    code = (home / "demo_cli_pipeline.py").read_text()
    code = code.replace("import KeyedProcessFunction", "import KeyedProcessFunction, Migration")
    code = code.replace('"last_leg", str,', '"last_leg", str, migrate=Migration(int, str),')
    (home / "demo_cli_pipeline.py").write_text(code)
    shutil.rmtree(home / "lake")  # it has other columns than the pipeline
    result = headrace("check demo --json")
    assert (result.exit_code, findings(result)["state"][0]) == (0, "warn")
    assert "the next run migrates it first" in findings(result)["state"][2]


def findings(result):
    return {f["check"]: (f["outcome"], f["detail"], f["advice"]) for f in json.loads(result.stdout)["findings"]}
