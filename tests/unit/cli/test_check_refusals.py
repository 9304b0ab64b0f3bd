"""`check` and `explain` refuse what `run` would refuse, and name all problems at once."""

from __future__ import annotations

import json

import pytest

from headrace.execution.drain import PROCESS
from headrace.log.checkpoint import Kind
from headrace.log.facts import JobWork
from headrace.state.key_groups import key_group
from tests.unit.support.demo_job import JOB, PIPELINE


def findings(result) -> list[tuple[str, str, str]]:
    return [(f["check"], f["outcome"], f["detail"]) for f in json.loads(result.stdout)["findings"]]


def problems(result) -> list[str]:
    """Return the lines of the error, without the heading."""
    return [line.strip() for line in result.stderr.splitlines()[1:]]


@pytest.mark.parametrize("command", ["check demo", "explain demo"])
def test_file_bindings_and_pipeline_are_listed_together(headrace, home, command):
    job = JOB.replace("sources: {events:", "sources: {evnts:").replace("path: lake/board", "path: events/../events")
    (home / "conf/jobs/demo.yaml").write_text(job + "run: {lease: 1s}\nasync_io: {weather: {}}\n")
    code = PIPELINE.replace('event_time="at")', 'event_time="tail").filter(str)')
    (home / "demo_cli_pipeline.py").write_text(code + 'pipeline.source("more", Event, event_time="at").filter(str)\n')
    result = headrace(command)
    assert result.exit_code == 2
    file = home / "conf/jobs/demo.yaml"
    assert f"{file} has 8 problems:" in result.stderr
    output = [line.partition("demo.yaml")[2].lstrip(":0123456789 ") or line for line in problems(result)]
    starts = [
        "sinks.board.path: source 'evnts' reads this folder",
        "run.lease: shorter than 5s",
        "sources.events: the pipeline's source 'events' is not bound",
        "sources.more: the pipeline's source 'more' is not bound",
        "sources.evnts: the pipeline has no source 'evnts'",
        "async_io.weather: the pipeline has no async operator",
        "pipeline 'demo': event_time 'tail' of Event must be a Timestamp",
        "pipeline 'demo': nobody reads the stream of 'filter str'",
    ]
    assert [start for start in starts if not any(line.startswith(start) for line in output)] == []


def test_failed_import_is_one_problem(headrace, home):
    (home / "demo_cli_pipeline.py").write_text("1 / 0\n")
    (home / "conf/jobs/demo.yaml").write_text(JOB + "run: {lease: 1s}\n")
    result = headrace("check demo")
    lease, code = problems(result)
    assert result.exit_code == 2
    assert "run.lease: shorter than 5s" in lease
    assert "pipeline: module 'demo_cli_pipeline' cannot be imported: ZeroDivisionError: division by zero" in code


def test_declarations_of_functions_are_checked(headrace, home):
    code = PIPELINE.replace("    last_leg =", '    other = ValueState("last_leg", int)\n    last_leg =')
    (home / "demo_cli_pipeline.py").write_text(code)
    result = headrace("check demo")
    assert result.exit_code == 2
    assert "process 'legs': Legs declares two states named 'last_leg'; give one of them another name" in result.stderr


@pytest.mark.parametrize("path", ["events", "./events/", "lake/../events"])
def test_sink_may_not_be_a_source(headrace, home, path):
    (home / "conf/jobs/demo.yaml").write_text(JOB.replace("lake/board", path))
    result = headrace("check demo")
    assert (result.exit_code, "source 'events' reads this folder: a job must not read" in result.stderr) == (2, True)


def test_two_sinks_may_not_share_a_table(headrace, home):
    text = JOB.replace("mode: merge}", "mode: merge}, more: {path: ./lake//board/, mode: append}")
    (home / "conf/jobs/demo.yaml").write_text(text)
    assert "sinks.more.path: sink 'board' writes to the same table" in headrace("check demo").stderr


@pytest.mark.parametrize("command", ["check demo", "run demo"])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("FILE://localhost{home}/x/../l%61ke/board", "sinks.more.path: sink 'board' writes to the same table"),
        ("link//board/", "sinks.more.path: sink 'board' writes to the same table"),
        ("file:{home}/var/./state/demo/more", "sinks.more.path: this is in the folder of the job's state"),
        ("var/state/x/..", "sinks.more.path: the job's state, "),
    ],
)
def test_equal_paths_spelled_differently_are_detected(headrace, home, command, more, message):
    (home / "link").symlink_to(home / "lake")
    text = JOB.replace("mode: merge}", f"mode: merge}}, more: {{path: '{more.format(home=home)}', mode: append}}")
    (home / "conf/jobs/demo.yaml").write_text(text)
    result = headrace(command)
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_sink_may_not_lie_in_the_state(headrace, home):
    (home / "conf/jobs/demo.yaml").write_text(JOB.replace("lake/board", "var/state/demo/board"))
    assert "sinks.board.path: this is in the folder of the job's state" in headrace("check demo").stderr


def test_doctor_lists_the_same_refusals(headrace, home):
    (home / "demo_cli_pipeline.py").write_text(PIPELINE.replace('event_time="at"', 'event_time="tail"'))
    (finding,) = [f for f in findings(headrace("doctor --job demo --json")) if f[0] == "job demo"]
    assert finding[1] == "fail"
    assert "event_time 'tail' of Event must be a Timestamp" in finding[2]


def test_check_finds_a_sink_with_other_columns(headrace, state):
    result = headrace("check demo --json")
    output = [detail for what, outcome, detail in findings(result) if (what, outcome) == ("sinks", "fail")]
    assert result.exit_code == 1
    assert any(
        "has the columns leg, tail; the pipeline writes tail, at. Nothing was written: take the change back" in t
        for t in output
    )


def test_check_finds_another_number_of_key_groups(headrace, state, home):
    (home / "conf/jobs/demo.yaml").write_text(JOB + "max_parallelism: 64\n")
    result = headrace("check demo --json")
    assert result.exit_code == 1
    assert any("the state has 128 key groups, not 64" in detail for _, _, detail in findings(result))


def test_check_finds_elements_without_operator(headrace, state):
    held = {"operator": "gone", "key_group": key_group(b'"N1"', 128), "key": '"N1"', "sequence": 1}
    state.add(
        "buffered_requests", [{**held, "block_id": PROCESS, "record": "{}", "checkpoint_id": 5, "deleted": False}]
    )
    waiting = {**held, "operator": "away", "checkpoint_id": 5, "deleted": False}
    state.add("async_requests", [waiting])
    state.commit(Kind.BATCH, work=JobWork(held=1, pending=1))
    result = headrace("check demo --json")
    details = [detail for what, outcome, detail in findings(result) if (what, outcome) == ("state", "fail")]
    assert result.exit_code == 1
    assert "elements wait for operator 'away' (headrace waiting demo --calls)" in details[0]
    assert "operator 'gone' holds records of a run that had to stop" in details[1]
    assert "Bring the name back" in details[1]
