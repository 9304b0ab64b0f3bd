"""Commands that read: their output for people and for machines."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from headrace import cli
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.log.progress import ProgressFiles, TaskProgress, added_up
from headrace.sources.position import FolderPosition, SourceFacts
from headrace.tables.folder import JobFolder
from pipelines.flights.demo import SOURCE, Demo
from tests.unit.support.demo_job import HOUR, START, timer

READERS = (
    "state list",
    "state list --largest",
    "state get N1",
    "state scan",
    "state history N1",
    "waiting --timers",
    "quarantine",
    "sql demo",
)


def words(command: str) -> list[str]:
    return [*command.split(), "select 1 as one"] if command.startswith("sql") else command.split()


@pytest.mark.parametrize("command", READERS)
def test_json_is_one_document_and_nothing_else(headrace, state, command):
    result = headrace(*words(command), "--json", "--at", "2")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["checkpoint"] == 2
    assert result.stderr == ""


def test_json_makes_no_table_for_people(headrace, state, monkeypatch):
    monkeypatch.setattr("headrace.cli.output._shown_rows", lambda *_: pytest.fail("it is read by nobody"))
    assert json.loads(headrace("sql", "demo", "select 1 as one", "--json").stdout)["rows"] == [{"one": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("command", [*READERS, "history N1", "waiting --calls", "waiting --held", "state expired"])
def test_every_reader_takes_an_event_time(headrace, state, command):
    state.commit(Kind.BATCH, watermark=state.log.last.watermark + HOUR)
    result = headrace(*words(command), "--json", "--as-of", "2013-01-31T00:30")
    assert json.loads(result.stdout)["checkpoint"] == 4
    assert (
        result.stderr
        == "note: this is checkpoint 4, whose watermark is 2013-01-31; the next one, 5, has 2013-01-31T01:00Z\n"
    )


@pytest.mark.slow
def test_event_time_beyond_all_watermarks_names_the_latest(headrace, state):
    result = headrace("state list --as-of 2013-03-01")
    assert result.stderr == "note: this is checkpoint 4, whose watermark is 2013-01-31: the latest one\n"


@pytest.mark.slow
def test_page_of_an_event_time_names_its_checkpoint(headrace, state, tmp_path):
    state.commit(Kind.BATCH, watermark=state.log.last.watermark + HOUR)
    result = headrace("report", "demo", "--as-of", "2013-01-31T00:30", "--out", str(tmp_path / "page.html"))
    assert result.exit_code == 0
    assert (
        "note: this is checkpoint 4, whose watermark is 2013-01-31; the next one, 5, has 2013-01-31T01:00Z\n"
        in result.stderr
    )


@pytest.mark.parametrize("command", READERS)
def test_every_reader_takes_a_savepoint(headrace, state, command):
    result = headrace(*words(command), "--at", "before")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("command", [*READERS, "checkpoints", "status", "jobs"])
def test_tables_fit_into_a_hundred_columns(headrace, state, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = headrace(*words(command))
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_checkpoints_output_warns_about_unkept_sinks(headrace, state):
    assert "Savepoints keep files of the state, and none of the sinks" in headrace("checkpoints").stdout
    assert "Savepoints keep" not in headrace("checkpoints", "-n", "1").stdout
    assert "Savepoints keep" not in headrace("checkpoints", "--json").stdout


def test_stored_json_comes_out_as_json(headrace, state):
    document = json.loads(headrace("state get demo N1 --operator legs --json").stdout)["entries"]
    assert [(row["key"], row["value"], row["expires_at"]) for row in document] == [
        ("N1", "LAX-SFO", "2013-01-31T12:00:00Z")
    ]


@pytest.mark.slow
def test_timers_show_their_domain(headrace, state):
    state.add("timers", [timer("N1", 3 * HOUR, 5, domain="processing_time")])
    state.commit(Kind.BATCH)
    output = headrace("waiting --timers").stdout
    assert "event_time" in output
    assert "processing_time" in output
    document = json.loads(headrace("waiting --timers --json").stdout)["timers"]
    assert sorted(row["domain"] for row in document) == ["event_time", "processing_time"]


@pytest.fixture
def cleaned_up(state):
    """One timer of the user is left, and three of the engine's own, one of them removed."""
    own = [
        timer(key, HOUR, 5, domain=f"{time}_cleanup")
        for key, time in zip("ABC", ["event_time"] * 2 + ["processing_time"], strict=True)
    ]
    state.add("timers", [*own, timer("D", HOUR, 5, domain="event_time_cleanup", deleted=True)])
    state.commit(Kind.BATCH)
    return state


@pytest.mark.slow
def test_engine_timers_are_left_out_and_counted(headrace, cleaned_up):
    for command in ("waiting --timers", "state list"):
        output = headrace(command).stdout
        assert "cleanup" not in output
        assert "left out: 3 timers that Headrace sets to clean up; --all shows them" in output
        assert json.loads(headrace(f"{command} --json").stdout)["timers_left_out"] == 3
    assert [row["key"] for row in json.loads(headrace("waiting --timers --json").stdout)["timers"]] == ["N1"]
    assert "1 timer, at checkpoint 5" in headrace("waiting --timers").stdout


@pytest.mark.slow
def test_all_timers_are_listed_if_asked_for(headrace, cleaned_up):
    document = json.loads(headrace("waiting --timers --all --json").stdout)
    assert ([row["key"] for row in document["timers"]], document["timers_left_out"]) == (["A", "B", "C", "N1"], 0)
    kinds = {
        row["state"]: (row["kind"], row["entries"])
        for row in json.loads(headrace("state list --all --json").stdout)["states"]
    }
    assert (kinds["event_time"], kinds["event_time_cleanup"]) == (("timers", 1), ("internal timers", 2))
    assert kinds["processing_time_cleanup"] == ("internal timers", 1)
    assert "left out" not in headrace("waiting --timers --all").stdout + headrace("state list --all").stdout


def test_limit_ignores_timers_left_out(headrace, cleaned_up):
    assert [row["key"] for row in json.loads(headrace("waiting --timers -n 1 --json").stdout)["timers"]] == ["N1"]


@pytest.mark.slow
def test_complete_timer_list_has_no_omission_note(headrace, state):
    assert "left out" not in headrace("waiting --timers").stdout + headrace("state list").stdout
    assert json.loads(headrace("waiting --timers --json").stdout)["timers_left_out"] == 0


def test_user_data_is_never_taken_for_markup(headrace, state):
    assert "[bold]" in headrace("quarantine").stdout


@pytest.mark.slow
def test_only_job_need_not_be_named(headrace, state):
    assert headrace("state get N1").stdout == headrace("state get demo N1").stdout


def test_job_argument_is_required_with_several_jobs(headrace, home):
    text = (home / "conf/jobs/demo.yaml").read_text()
    (home / "conf/jobs/twin.yaml").write_text(text.replace("job: demo", "job: twin"))
    result = headrace("waiting --timers")
    assert (result.exit_code, "name one of them: demo, twin" in result.stderr) == (2, True)


def test_sql_answers_with_columns_and_rows(headrace, state):
    result = headrace("sql", "select kind, count(*) as n from checkpoints group by 1 order by 2 desc, 1", "--json")
    document = json.loads(result.stdout)
    assert (document["columns"], document["rows"][0]) == (["kind", "n"], {"kind": "batch", "n": 2})


def test_checkpoints_are_listed_newest_first(headrace, state):
    document = json.loads(headrace("checkpoints --json -n 3").stdout)
    assert [(c["checkpoint_id"], c["kind"], c["name"]) for c in document["checkpoints"]] == [
        (4, "compaction", None),
        (3, "savepoint", "before"),
        (2, "batch", None),
    ]
    assert document["total"] == 5
    assert "savepoint before" in headrace("checkpoints").stdout


def test_status_names_the_holder_of_the_job(headrace, state, at_nine):
    state.hold(until=at_nine.now() + 60_000)
    (job,) = json.loads(headrace("status --json").stdout)["jobs"]
    assert (job["checkpoint"], job["held_by"], job["held_until"]) == (4, "run-9", "2013-02-01T09:01:00Z")


def test_status_shows_progress_of_the_holder_alone(headrace, state, at_nine):
    progress = added_up(5, "legs", 1000, [TaskProgress(operator="legs", rows=300, in_flight=2)])
    jobs = []
    for attempt in "dead", "a":
        state.hold(until=at_nine.now() + 60_000 * (attempt == "a"))
        ProgressFiles(JobFolder(str(state.folder)), attempt).write(progress)
        jobs += json.loads(headrace("status --json").stdout)["jobs"]
    dead, alive = [job["progress"] for job in jobs]
    assert dead is None
    assert (alive["rows"], alive["of"]) == (300, 1000)
    assert "demo: micro-batch 5, legs: 300 of 1,000 rows, 2 in flight" in " ".join(headrace("status").stdout.split())


def test_status_lists_a_broken_job_beside_the_others(headrace, home):
    (home / "conf" / "jobs" / "broken.yaml").write_text("job: broken\npipelin: x\n")
    result = headrace("status --json")
    document = {status["job"]: status["error"] for status in json.loads(result.stdout)["jobs"]}
    broken = document.pop("broken")
    assert (result.exit_code, list(document.values())) == (2, [None])
    assert "pipelin" in broken
    assert "pipelin" in headrace("status").stdout
    assert (headrace("status broken").exit_code, headrace("status broken").stdout) == (2, "")


def test_status_of_new_job_is_no_error(headrace):
    result = headrace("status")
    assert (result.exit_code, "never run" in result.stdout) == (0, True)


def test_jobs_lists_a_broken_file_with_its_error(headrace, home):
    (home / "conf/jobs/broken.yaml").write_text("job: broken\n")
    result = headrace("jobs --json")
    document = {job["job"]: job["error"] for job in json.loads(result.stdout)["jobs"]}
    assert result.exit_code == 2
    assert document["demo"] is None
    assert "broken.yaml" in document["broken"]


@pytest.mark.parametrize("option", ["--schema", "--cluster-schema"])
def test_schemas_are_printed_for_editors(headrace, option):
    assert "$schema" in json.loads(headrace(f"jobs {option}").stdout)


def test_explain_shows_operators_state_and_bindings(headrace, home):
    output = headrace("explain").stdout
    expected = [
        "stage 2",
        "keyed process legs",
        "key: tail",
        "last_leg",
        "kind value",
        "ttl 12h on_create_and_write",
        "upsert materializer",
        "mode: merge",
    ]
    assert [part for part in expected if part not in output] == []
    stages = json.loads(headrace("explain --json").stdout)["stages"]
    assert [stage["operators"][0]["kind"] for stage in stages] == ["source", "keyed process", "upsert materializer"]


def test_explain_shows_changed_state_options_json_shows_all(headrace, home):
    with (home / "conf/jobs/demo.yaml").open("a") as file:
        file.write("execution: {async-state: {buffer-timeout: 250ms, buffer-size: 500}}\n")
        file.write("operators: {legs: {execution: {async-state: {buffer-size: 200}}}}\n")
    output = "async state: in-flight-records-limit 6000, buffer-size 200, buffer-timeout 250ms\n"
    assert output in headrace("explain").stdout
    (_, stage, _) = json.loads(headrace("explain --json").stdout)["stages"]
    assert stage["operators"][0]["async_state"] == {
        "enabled": True,
        "in-flight-records-limit": 6000,
        "buffer-size": 200,
        "buffer-timeout": "250ms",
        "order-with-same-key": "record-ordered",
        "event-order.watermark": "out-of-order",
        "io-parallelism": 2,
        "cache-entries": 1_000_000,
    }


@pytest.mark.slow
def test_reading_imports_neither_spark_nor_pandas_nor_datasets(state, home):
    import subprocess
    import sys
    from pathlib import Path

    code = (
        "import sys; sys.argv = ['headrace', 'state', 'get', 'N1']\n"
        "from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([m for m in ('pyspark', 'pandas', 'pyarrow.dataset', 'airflow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["history demo", "state get demo", "state history demo", "sql demo", "erase demo"])
def test_job_without_its_key_is_named(headrace, state, command):
    result = headrace(command)
    assert result.exit_code == ConfigError.exit_code
    assert "'demo' is a job, and the second argument is missing" in result.stderr


@pytest.mark.slow
def test_expired_key_says_so(headrace, state):
    state.commit(Kind.BATCH, watermark=START + 20 * HOUR)
    result = headrace("state get N1 --operator legs")
    assert "0 entries, at checkpoint 5" in result.stdout
    assert result.stderr == "note: 1 entry of this key expired and is hidden; --with-expired shows it\n"


@pytest.mark.slow
def test_key_with_a_minus_gets_a_hint(headrace, state):
    result = headrace("state get demo -5")
    assert "If -5 is a key, write -- before it: -- -5" in " ".join(result.stderr.split())
    assert headrace("state", "get", "demo", "--", "-5").stdout == "0 entries, at checkpoint 4\n"


def test_demo_reads_positions_of_the_shown_checkpoints(headrace, state):
    """Programs of others read this JSON as well: the demo continues, and verifies, by the last day that it names."""
    position = FolderPosition("2013-01-31.parquet")
    state.commit(Kind.BATCH, sources={SOURCE: SourceFacts(position=position)})
    newest_first = json.loads(headrace("checkpoints --json").stdout)["checkpoints"]
    assert newest_first[0]["sources"][SOURCE]["position"] == {"kind": "folder", "last": "2013-01-31.parquet"}
    assert Demo.last_day(SimpleNamespace(checkpoints=lambda: newest_first[::-1])) == "2013-01-31"
    assert Demo.last_day(SimpleNamespace(checkpoints=list)) is None


def test_history_of_an_unknown_key_says_so(headrace, state):
    result = headrace("state history nobody")
    assert result.exit_code == 0
    assert "nothing is stored of this key" in result.stderr
