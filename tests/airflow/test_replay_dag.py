"""The replay DAG of a job: its triggers, the commands of its tasks, and retries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    DownstreamTasksSkipped,
    TaskAwaitingInput,
)
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from headrace.airflow._rest import AirflowApi
from headrace.airflow._words import plain_words
from tests.airflow.test_partitions import events_of
from tests.airflow.test_run_operator import DAY, GAP, REPORT, FakeInstance, context_of, execute, last_published

__all__ = ["last_published"]


TAKEN_IN = {**GAP, "message": "has been taken in already", "is_taken_in": True}
DONE = {
    "job": "flights", "name": "replay", "from": "2013-01-10T00:00:00Z", "to": "2013-01-11T00:00:00Z", "outcome": "needs_approval",
    "fork_id": 9, "checkpoint": 12, "checkpoints": [11, 12], "rows_in": 900, "waiting": 0, "stopped_because": "interval",
    "promotion": None,
    "differences": {"from": 10, "to": 12, "tables": [
        {"table": "keyed_state", "is_sink": False, "counts": [{"operator": "delay", "state": "late", "changed": 3}], "rows": [{"after": "N14228"}]},
        {"table": "flight_board", "is_sink": True, "counts": [{"added": 1200, "changed": 2}], "rows": [{"after": "N14228"}]},
    ]},
}  # fmt: skip


@pytest.fixture
def replay(dag_bag):
    return dag_bag().dags["flights_replay"]


@pytest.fixture
def notes(monkeypatch):
    written = []
    for module in ("_run_operator", "_replay_task"):
        monkeypatch.setattr(f"headrace.airflow.{module}.write_note", lambda _, text, __: written.append(text))
    return written


def flow(dag):
    return {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}


def test_replay_is_shown_approved_and_promoted(replay):
    assert flow(replay) == {"backfill": ["approve"], "approve": ["drop", "promote"], "promote": [], "drop": []}
    assert (replay.max_active_runs, replay.is_paused_upon_creation, replay.catchup) == (1, False, False)


@pytest.mark.parametrize(
    ("policy", "tasks"), [("automatic", {"backfill": ["promote"], "promote": []}), ("refuse", {"backfill": []})]
)
def test_promotion_policy_selects_the_dag_tasks(dag_bag, edit_job, policy, tasks):
    edit_job("flights", replay={"promote": policy})
    assert flow(dag_bag().dags["flights_replay"]) == tasks


def test_run_requests_replay_through_its_asset(dag_bag):
    dags = dag_bag().dags
    (asset,) = [outlet for outlet in dags["flights"].get_task("run").outlets if outlet.name == "flights_replay"]
    assert dags["flights_replay"].schedule == [asset]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"replay": {"dag": False}}, id="by choice"),
        pytest.param({"sources": {"flight_events": {"path": "var/data"}}}, id="no intervals"),
    ],
)
def test_job_may_have_no_replay_dag(dag_bag, edit_job, changes):
    edit_job("flights", **changes)
    bag = dag_bag()
    assert "flights_replay" not in bag.dags
    assert "flights_replay" not in {asset.name for asset in bag.dags["flights"].get_task("run").outlets}


def test_job_named_like_replay_dag_is_refused(dag_bag, home):
    job = yaml.safe_load((home / "conf" / "jobs" / "flights.yaml").read_text())
    (home / "conf" / "jobs" / "flights_replay.yaml").write_text(yaml.safe_dump({**job, "job": "flights_replay"}))
    bag = dag_bag()
    assert "flights" not in bag.dags
    assert (
        "'flights_replay' is the name of its replay DAG, and of another job" in bag.import_errors["headrace_errors.py"]
    )


def test_single_dag_brings_its_replay(dag_bag, home, tmp_path):
    file = tmp_path / "dags" / "mine.py"
    file.parent.mkdir()
    file.write_text(
        f"from headrace.airflow import headrace_dag  # airflow\ndag = headrace_dag('flights', {str(home)!r})\n"
    )
    assert set(dag_bag(file.parent).dags) == {"flights", "flights_replay"}


def test_secrets_stay_out_of_the_serialised_replay(dag_bag, edit_profile, monkeypatch):
    edit_profile("local", {"spark.hadoop.fs.s3a.secret.key": "${STORE_SECRET}"})
    monkeypatch.setenv("STORE_SECRET", "hush-hush")
    serialised = DagSerialization.to_json(dag_bag().dags["flights_replay"])
    assert "${STORE_SECRET}" in serialised
    assert "hush-hush" not in serialised


@pytest.fixture
def run(dag_bag):
    task = dag_bag().dags["flights"].get_task("run")
    task.allow_nested_operators = True
    return task


ASKED = ["2013-01-10T00:00:00+00:00", "2013-01-11T00:00:00+00:00"]


def execute_taken_in(run, report=TAKEN_IN, /, **context):
    run.application_args = ["run", "flights", f"--interval-start={ASKED[0]}", f"--interval-end={ASKED[1]}"]
    result = context_of(run, **context)
    words = run.application_args
    try:
        return execute_words(run, words, result, report), result
    finally:
        run.application_args = words


def execute_words(run, words, context, report):
    from tests.airflow.test_run_operator import FakeHook

    run.application_args = words
    run._hook = FakeHook(run, 9, report, ())
    return run.execute(context)


CHANGED = "file 2013-01-10.parquet of source 'flight_events' has changed since checkpoint 3 took it in"


@pytest.mark.parametrize(
    "context", [{}, {"run_type": "backfill"}, {"max_tries": 3}, {"run_type": "manual", "logical_date": DAY}]
)
@pytest.mark.parametrize("changes", [[], [CHANGED], [CHANGED, CHANGED]])
def test_refused_interval_is_registered_with_its_reason(run, notes, context, changes):
    result, actual = execute_taken_in(run, {**TAKEN_IN, "changes": changes}, **context)
    (asset,) = run.outlets
    assert (asset.name, result["registered"], result["changes"]) == ("flights_replay", True, changes)
    assert actual["outlet_events"][asset].extra == {"from": ASKED[0], "to": ASKED[1], "run_id": "this"}
    more = ", and 1 more" if len(changes) > 1 else ""
    why = f"input changed ({CHANGED}{more})" if changes else "asked for again"
    assert notes[0].startswith(f"{why}, registered for replay: interval {ASKED[0]} to {ASKED[1]} was taken in already")
    assert "The DAG flights_replay computes it again" in notes[0]


PENDING = {"from": "2013-01-10T00:00:00Z", "to": "2013-01-12T00:00:00Z"}


@pytest.mark.parametrize(("follow", "asks"), [("automatic", True), ("ask", False), ("never", False)])
def test_pending_days_are_registered_if_the_job_follows(dag_bag, edit_job, notes, last_published, follow, asks):
    edit_job("flights", replay={"follow": follow})
    run = dag_bag().dags["flights"].get_task("run")
    run.allow_nested_operators = True
    context = context_of(run)
    execute(run, report={**REPORT, "pending": PENDING}, context=context)
    replayed = [asset for asset in run.outlets if asset.name == "flights_replay"]
    assert len(replayed) == asks
    for asset in replayed:
        assert context["outlet_events"][asset].extra == {**PENDING, "run_id": "this"}
    assert "--no-follow=True" in dag_bag().dags["flights"].get_task("run").application_args


def test_open_interval_waits_until_its_end(run):
    report = {**GAP, "error": "OpenIntervalError", "open_until": "2199-01-12T00:00:00Z"}
    with pytest.raises(AirflowRescheduleException) as caught:
        execute(run, 9, report)
    assert caught.value.reschedule_date.isoformat() == "2199-01-12T00:00:00+00:00"


def test_gap_is_refused_also_in_a_backfill(run):
    with pytest.raises(AirflowFailException, match="there would be a gap"):
        execute(run, 9, GAP, context=context_of(run, run_type="backfill"))


def test_job_without_replay_dag_fails_as_before(dag_bag, edit_job):
    edit_job("flights", replay={"dag": False})
    task = dag_bag().dags["flights"].get_task("run")
    task.allow_nested_operators = True
    with pytest.raises(AirflowFailException, match="exit code 9: not retried"):
        execute_taken_in(task, run_type="backfill")


def test_successful_run_requests_no_replay(run):
    execute(run, report=REPORT)
    assert "flights_replay" not in {asset.name for asset in run.outlets}


def request(start, end, run):
    by = {"source_dag_id": "flights", "source_run_id": run, "source_task_id": "run"}
    return SimpleNamespace(extra={"from": start, "to": end}, **by)


def asking(*wishes, params=(None, None)):
    events = {"asset": [request(start, end, f"day {number}") for number, (start, end) in enumerate(wishes)]}
    return {
        "ti": FakeInstance(),
        "run_id": "this",
        "params": dict(zip(("from", "to"), params, strict=True)),
        "triggering_asset_events": events if wishes else {},
        "dag_run": SimpleNamespace(partition_key=None),
        "outlet_events": OutletEventAccessors(),
    }


def perform(dag, task_id, context, report=DONE, exit_code=0):
    from tests.airflow.test_run_operator import FakeHook

    task = dag.get_task(task_id)
    task.allow_nested_operators = True
    task._hook = FakeHook(task, exit_code, report, ())
    return task.execute(context), plain_words(task.application_args)


def test_replay_requests_are_merged(replay, notes):
    wishes = [("2013-01-10T00:00:00+00:00", "2013-01-11T00:00:00+00:00"), ("2013-01-08T01:00:00+01:00", "2013-01-09")]
    _, words = perform(replay, "backfill", asking(*wishes, params=("2013-01-09", "2013-01-10")))
    assert words[:2] == ["backfill", "flights"]
    assert {"--from=2013-01-08T00:00:00+00:00", "--to=2013-01-11T00:00:00+00:00"} <= {*words}
    assert {"--name=replay", "--promote=approval", "--renew", "--budget=1800s"} <= {*words}


def test_promotion_continues_with_the_open_branch(replay, notes):
    result, words = perform(replay, "promote", asking(params=("2013-01-10", "2013-01-11")))
    assert {"--promote=automatic", "--only-open"} <= {*words}
    assert result["outcome"] == "needs_approval"


@pytest.mark.parametrize("params", [(None, None), ("2013-01-10", None), ("monday", "2013-01-11")])
def test_replay_without_an_interval_is_refused(replay, params):
    with pytest.raises(AirflowFailException, match="names no interval .* Nothing was done"):
        perform(replay, "backfill", asking(params=params))


def test_note_has_numbers_and_no_values(replay, notes):
    result, _ = perform(replay, "backfill", asking(params=("2013-01-10", "2013-01-11")))
    assert notes == [result["summary"]]
    assert notes[0].splitlines()[2:6] == [
        "| table | state of | added | gone | changed | renewed |",
        "|---|---|--:|--:|--:|--:|",
        "| flight_board (sink) |  | 1,200 | 0 | 2 | 0 |",
        "| keyed_state | delay late | 0 | 0 | 3 | 0 |",
    ]
    assert "N14228" not in str(result)


@pytest.mark.parametrize("outcome", ["waiting", "unfinished"])
def test_unfinished_backfill_continues_on_retry(replay, notes, outcome):
    with pytest.raises(AirflowRescheduleException):
        perform(replay, "backfill", asking(params=("2013-01-10", "2013-01-11")), {**DONE, "outcome": outcome})
    assert outcome in notes[0]


def test_backfill_without_progress_uses_up_a_retry(replay, notes):
    report = {**DONE, "outcome": "unfinished", "checkpoints": []}
    with pytest.raises(AirflowException, match="without progress"):
        perform(replay, "backfill", asking(params=("2013-01-10", "2013-01-11")), report)


def test_replay_waits_for_a_held_job(replay):
    report = {"error": "FencedError", "message": "run r1 holds the job", "exit_code": 3}
    with pytest.raises(AirflowRescheduleException):
        perform(replay, "promote", asking(params=("2013-01-10", "2013-01-11")), report, 3)


def test_changed_input_fails_at_once(replay):
    report = {"error": "SourceError", "message": "the input of branch 'replay' changed again", "exit_code": 7}
    with pytest.raises(AirflowFailException, match="changed again"):
        perform(replay, "promote", asking(params=("2013-01-10", "2013-01-11")), report, 7)


@pytest.fixture
def approve(replay):
    task = replay.get_task("approve")
    task.allow_nested_operators = True
    return task


def test_approval_waits_for_a_person(approve, monkeypatch):
    asked = []
    monkeypatch.setattr("airflow.sdk.execution_time.hitl.upsert_hitl_detail", lambda **question: asked.append(question))
    approve.outcome = "needs_approval"
    with pytest.raises(TaskAwaitingInput) as waiting:
        approve.execute({"ti": SimpleNamespace(id="T")})
    assert waiting.value.method_name == "answered"
    assert (asked[0]["ti_id"], asked[0]["options"], asked[0]["params"]) == ("T", ["Approve", "Reject"], {})


def test_approval_page_explains_both_answers(approve):
    assert "*Approve* makes the result live in one commit, *Reject* removes the branch" in approve.body


def test_plan_leaves_out_the_commands_own_end(replay, notes):
    lines = [
        {"label": "because", "text": "the interval begins there"},
        {"label": "then", "text": "waits for 'headrace branch promote flights replay'"},
        {"label": "changed input", "text": "file 2013-01-10.parquet has changed"},
    ]
    result, _ = perform(replay, "backfill", asking(params=("2013-01-10", "2013-01-11")), {**DONE, "plan": lines})
    shown = ["| because | the interval begins there |", "| changed input | file 2013-01-10.parquet has changed |"]
    assert result["plan"].splitlines()[2:] == shown


@pytest.mark.parametrize(("approvers", "assigned"), [([], []), (["ada"], [{"id": "ada", "name": "ada"}])])
def test_job_file_says_who_may_answer(dag_bag, edit_job, monkeypatch, approvers, assigned):
    edit_job("flights", airflow={"approvers": approvers}, replay={"max_calls": 0})
    asked = []
    monkeypatch.setattr("airflow.sdk.execution_time.hitl.upsert_hitl_detail", lambda **question: asked.append(question))
    for name, outcome in ("approve", "needs_approval"), ("begin", "beyond_limits"):
        task = dag_bag().dags["flights_replay"].get_task(name)
        task.allow_nested_operators, task.outcome = True, outcome
        with pytest.raises(TaskAwaitingInput):
            task.execute({"ti": SimpleNamespace(id="T")})
    assert [question["assigned_users"] for question in asked] == [assigned, assigned]


ROWS = [
    {"change": "changed", "name": {"id": 7}, "before": {"n": 1, "at": "x"}, "after": {"n": 2, "at": "x"}, "fields": ["n"]},
    {"change": "added", "name": {"id": "a|<b>"}, "before": None, "after": {"n": None}, "fields": []},
    {"change": "gone", "name": {"id": 9}, "before": {"n": "*" * 999}, "after": None, "fields": []},
]  # fmt: skip


@pytest.mark.parametrize("most", [0, 2, 50])
def test_question_shows_as_many_rows_as_allowed(dag_bag, edit_job, notes, most):
    edit_job("flights", replay={"show_rows": most})
    replay = dag_bag().dags["flights_replay"]
    tables = [{**changed_sink("flight_board", 10), "rows": ROWS}, {**DONE["differences"]["tables"][0], "rows": ROWS}]
    report = {**DONE, "differences": {**DONE["differences"], "tables": tables}}
    result, words = perform(replay, "backfill", asking(params=("2013-01-10", "2013-01-11")), report)

    assert f"--limit={max(1, most)}" in words
    assert all("rows" not in table for table in result["differences"]["tables"])
    _, _, *shown = result["rows"].splitlines() or [None, None]
    assert (
        shown[:2]
        == [
            "| flight&#95;board | changed | id=7 | n: 1 -&#62; 2 |",
            "| flight&#95;board | added | id=a&#124;&#60;b&#62; | n=None |",
        ][:most]
    )
    assert len(shown) == min(most, 3)
    assert ("['rows']" in replay.get_task("approve").body) is (most > 0)
    assert max(map(len, shown), default=0) < 2500


def test_nothing_differs_needs_no_approval(approve, replay, notes):
    report = {**DONE, "outcome": "promoted", "differences": {**DONE["differences"], "tables": []}}
    result, _ = perform(replay, "backfill", asking(params=("2013-01-10", "2013-01-11")), report)
    instance = FakeInstance()
    instance.task, approve.outcome = approve, result["outcome"]
    with pytest.raises(DownstreamTasksSkipped) as ended:
        approve.execute({"ti": instance})
    assert sorted(ended.value.tasks) == [("drop", -1), ("promote", -1)]
    assert instance.xcoms["return_value"] == {"answer": None, "by": "nobody: promoted already"}


@pytest.mark.parametrize(("answer", "skipped"), [("Approve", "drop"), ("Reject", "promote")])
def test_approval_answer_skips_the_other_task(approve, answer, skipped):
    instance = FakeInstance()
    instance.task = approve
    with pytest.raises(DownstreamTasksSkipped) as ended:
        approve.answered(
            {"ti": instance, "triggering_asset_events": {}},
            {"chosen_options": [answer], "responded_by_user": {"name": "ada"}},
        )
    assert list(ended.value.tasks) == [(skipped, -1)]
    assert instance.xcoms["return_value"] == {"answer": answer, "by": "ada"}


def changed_sink(name, *days):
    intervals = [[f"2013-01-{day:02}T00:00:00Z", f"2013-01-{day + 1:02}T00:00:00Z"] for day in days]
    return {"table": name, "is_sink": True, "counts": [{"added": 2, "changed": 1}], "intervals": intervals, "rows": []}


PROMOTED = {
    **DONE, "run_id": "r9", "outcome": "promoted", "promotion": 15,
    "differences": {"from": 10, "to": 12, "tables": [DONE["differences"]["tables"][0], changed_sink("flight_board", 10, 12)]},
}  # fmt: skip
TWO_DAYS = [
    ("2013-01-10T00:00:00+00:00", "2013-01-11T00:00:00+00:00"),
    ("2013-01-11T00:00:00+00:00", "2013-01-12T00:00:00+00:00"),
]


def test_promotion_names_the_days_with_changed_rows(replay, notes):
    context = asking(*TWO_DAYS)
    perform(replay, "promote", context, PROMOTED)
    days = ["2013-01-10T00:00:00", "2013-01-12T00:00:00"]
    assert events_of(context) == {"flights.flight_board": [*days, None]}
    ((asset, event),) = context["outlet_events"]._dict.items()
    assert [outlet.name for outlet in replay.get_task("promote").outlets] == [asset.name]
    assert (event.extra["rows"], event.extra["promotion"], event.extra["days"]) == (3, 15, days)
    assert "Days whose rows differ in sinks: 2013-01-10, 2013-01-12." in notes[0]


def test_replay_without_changes_has_no_events(replay, notes):
    context = asking(*TWO_DAYS)
    perform(replay, "promote", context, {**PROMOTED, "differences": {"from": 10, "to": 12, "tables": []}})
    assert (events_of(context), replay.get_task("promote").outlets) == ({}, [])


@pytest.mark.parametrize(("promotion", "is_told"), [(15, True), (9, False), (None, False)])
def test_promotion_of_a_dead_try_is_announced(replay, notes, promotion, is_told):
    """It was committed; the branch that the next try looks for is there no more."""
    context = asking(*TWO_DAYS)
    compared = {**PROMOTED, "outcome": "needs_approval", "promotion": None}
    context["ti"].xcom_pull = lambda **_: compared
    nothing = {"job": "flights", "name": "replay", "run_id": "r9", "outcome": "nothing_open", "promotion": promotion}
    perform(replay, "promote", context, nothing)
    assert bool(events_of(context)) is is_told


def test_each_day_says_where_its_replay_stands(replay, notes, monkeypatch):
    written = {}

    class Api:
        def patch(self, path, body, **query):
            written.setdefault(path, []).append(body["note"])

    monkeypatch.setattr(AirflowApi, "connected", Api)
    perform(replay, "promote", asking(*TWO_DAYS), PROMOTED)
    assert [*written] == [f"/dags/flights/dagRuns/day%20{number}/taskInstances/run" for number in (0, 1)]
    (began, first), (_, second) = written.values()
    assert began.startswith("2013-01-10 to 2013-01-11: the replay is at work")
    assert (
        first
        == "2013-01-10 to 2013-01-11: replayed and live: checkpoint 15 has the result; rows of this day differ in flight_board"
    )
    assert (
        second
        == "2013-01-11 to 2013-01-12: replayed and live: checkpoint 15 has the result; no row of this day differs in any sink"
    )
