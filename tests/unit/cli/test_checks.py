"""`check` and `doctor`: each finding comes with advice."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from headrace import Pipeline, Struct, Timestamp, native
from headrace.cli import doctor
from headrace.cli.findings import Finding
from headrace.log.log import CheckpointLog
from headrace.provision import pyspark as pyspark_version
from headrace.testing import PipelineHarness


class Service(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path.partition("?")[0] == "/health" else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def with_service(home, service):
    def add(health: str) -> None:
        with (home / "conf/jobs/demo.yaml").open("a") as file:
            file.write(f"services: {{weather: {{url: '{service}', health: {health}}}}}\n")

    return add


def findings(result) -> dict[str, str]:
    return {finding["check"]: finding["outcome"] for finding in json.loads(result.stdout)["findings"]}


def test_job_that_could_run_passes(headrace, with_service):
    with_service("/health")
    result = headrace("check --json --strict")
    assert (result.exit_code, set(findings(result).values())) == (0, {"ok"})


def test_unhealthy_service_is_a_warning_unless_strict(headrace, with_service):
    with_service("/sick")
    gentle, strict = headrace("check --json"), headrace("check --json --strict")
    assert (gentle.exit_code, findings(gentle)["service weather"]) == (0, "warn")
    assert (strict.exit_code, findings(strict)["service weather"]) == (1, "fail")


def test_service_without_health_check_is_not_asked(headrace, with_service):
    with_service("null")
    assert findings(headrace("check --json"))["service weather"] == "ok"


@pytest.mark.parametrize("command", ["doctor --job demo", "check", "check --json", "explain demo"])
@pytest.mark.parametrize("health", ["/health", "/sick", "/health?key=hush2", "null", "'/a b'"])
def test_reports_show_no_query_of_a_service(headrace, home, service, command, health):
    with (home / "conf/jobs/demo.yaml").open("a") as file:
        file.write(f"services: {{weather: {{url: '{service}/?token=hush', health: {health}}}}}\n")
    result = headrace(command)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "hush" not in result.output
    assert "explain" in command or f"{service}/" in result.stdout.replace("\n", "")


def test_health_path_precedes_the_query_of_url(headrace, home, service):
    with (home / "conf/jobs/demo.yaml").open("a") as file:
        file.write(f"services: {{weather: {{url: '{service}?token=hush', health: /health}}}}\n")
    assert findings(headrace("check --json"))["service weather"] == "ok"


@pytest.mark.parametrize(("key", "outcome"), [(("number", "word"), "warn"), ("word", "warn"), ("number", None)])
def test_sink_key_that_may_be_null_is_named(headrace, monkeypatch, key, outcome):
    class Word(Struct, frozen=True):
        number: int
        word: str | None
        at: Timestamp

    job = PipelineHarness(Pipeline("words").source("words", Word, event_time="at").sink("words", key=key), now=0)
    monkeypatch.setenv("HEADRACE_HOME", str(job.folder))
    result = headrace("check words --json")
    assert findings(result).get("sink words") == outcome
    assert ("word of Word may be null, and is in the key" in result.stdout) is (outcome is not None)


def test_missing_source_fails_and_names_the_line(headrace, home):
    (home / "events/2013-01-31.parquet").unlink()
    (home / "events").rmdir()
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["source events"]) == (1, "fail")
    assert "demo.yaml:4: sources.events.path" in result.stdout


def test_sink_that_is_a_file_is_one_finding(headrace, home):
    sink = yaml.safe_load((home / "conf/jobs/demo.yaml").read_text())["sinks"]
    path = home / next(iter(sink.values()))["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["sinks"]) == (1, "fail")
    assert findings(result)["source events"] == "ok"
    assert "is a file, and a folder is needed there" in result.stdout


def test_empty_source_is_a_warning(headrace, home):
    (home / "events/2013-01-31.parquet").unlink()
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["source events"]) == (0, "warn")


def details(result):
    return {finding["detail"] for finding in json.loads(result.stdout)["findings"] if finding["outcome"] != "ok"}


@pytest.mark.parametrize(
    ("columns", "exit_code", "says"),
    [
        ({"tail": ["N1"]}, 1, "{file} has no column at, which Event needs"),
        ({"Tail": ["N1"], "at": [1]}, 1, "{file}: tail is missing, but there is 'Tail', and names must be equal"),
        ({"tail": [1], "at": [1]}, 0, "column tail of {file} is int64, which is not string"),
        ({"tail": ["N1"], "at": [True]}, 0, "column at of {file} is bool, which is not a timestamp"),
    ],
)
def test_check_names_columns_that_do_not_fit(headrace, home, columns, exit_code, says):
    file = home / "events" / "2013-02-01.parquet"
    pq.write_table(pa.table(columns), file)
    result = headrace("check --json")
    (detail,) = details(result)
    assert (result.exit_code, detail.partition(": rename")[0]) == (exit_code, says.format(file=file))


EMPTY = (
    "it is empty, and should have a header even without rows: an upload may have failed, or csv.header is to be false"
)
WRONG_DELIMITER = " (its header has: 'tail;at'; csv.delimiter is ',', and ';' may be the one to write there)"


@pytest.mark.parametrize(
    ("content", "exit_code", "says"),
    [
        ("tail,at\nN1,1\n", 0, set()),
        (
            "tail;at\nN1;1\n",
            1,
            {"{file} has no column tail, at, which Event needs" + WRONG_DELIMITER},
        ),
        ("tail,,at\n", 1, {"{file}, the newest file, cannot be read: its header has a column without a name"}),
        ("", 1, {"{file}, the newest file, cannot be read: " + EMPTY}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_check_reads_the_header_of_the_newest_csv(headrace, home, content, exit_code, says, packed):
    job = home / "conf/jobs/demo.yaml"
    job.write_text(job.read_text().replace("{path: events}", "{path: events, format: csv}"))
    (home / "events" / "2013-01-31.parquet").unlink()
    file = home / "events" / ("a.csv.gz" if packed else "a.csv")
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    (home / "events" / "b.csv").write_text("x")
    os.utime(home / "events" / "b.csv", (1, 1))
    result = headrace("check --json")
    assert (result.exit_code, details(result)) == (exit_code, {text.format(file=file) for text in says})


@pytest.mark.parametrize(
    ("options", "content", "says"),
    [
        ("header: false, columns: [tail, at]", b"N1,1\n", ""),
        ("header: false, columns: [tail, at]", b"N1,1,2\n", "its first row has 3 fields, csv.columns has 2"),
        (
            "header: false, columns: [tail, when]",
            b"N1,1\n",
            "has no column at, which Event needs (csv.columns has: tail, when)",
        ),
        ("skip_lines: 1", b"report\ntail,at\n", ""),
        (
            "skip_lines: 2",
            b"report\ntail,at\n\nN1,1\n",
            "has no column tail, at, which Event needs (its header has: 'N1', '1')",
        ),
        ("skip_lines: 9", b"tail,at\n", "it has 1 line, and 9 should stand before its first row"),
        ("encoding: utf-16", "tail,at\n".encode("utf-16"), ""),
        ("encoding: utf-8", "tail,at\n".encode("utf-16"), "it begins with the mark of utf-16-le"),
    ],
)
def test_check_reads_csv_by_its_options(headrace, home, options, content, says):
    result = check_of(headrace, home, f"csv, csv: {{{options}}}", content, suffix="csv")
    assert (result.exit_code != 0, any(says in detail for detail in details(result))) == (bool(says), bool(says))


def test_check_names_arrays_that_documents_lack(headrace, home):
    result = check_of(headrace, home, "json, json: {rows: data.items}", b'{"data": {"rows": []}}', suffix="json")
    (detail,) = details(result)
    assert "line 1 has no 'items', and json.rows is data.items" in detail


AVRO = {"type": "record", "name": "Row", "fields": [{"name": "Tail", "type": "string"}, {"name": "at", "type": "long"}]}
LONG = b'{"tail": "N1", "at": 1, "Time": "%s"}\n' % (b"x" * 1000)


@pytest.mark.parametrize(
    ("content", "exit_code", "says"),
    [
        (b'{"Tail": "N1", "at": 1}\n', 1, "tail is missing, but there is 'Tail'"),
        (b'[{"tail": "N1"},\n {"tail": "N2"}]', 1, "has no column at, which Event needs"),
        (b'{"tail": "N1"}\n{"at": 1, "tail": "N2"}\n{"ta', 0, ""),
        (LONG * 99, 0, ""),
        (b"[" + LONG * 99, 0, ""),
        (b"", 0, ""),
    ],
)
def test_check_reads_the_first_rows_of_json(headrace, home, content, exit_code, says):
    result = check_of(headrace, home, "json", content)
    assert (result.exit_code, bool(says)) == (exit_code, bool(details(result)))
    assert all(says in detail for detail in details(result))


@pytest.mark.parametrize("doc", ["", "x" * 2**17], ids=["short", "long"])
def test_check_reads_the_header_of_avro(headrace, home, doc):
    content = io.BytesIO()
    fastavro.writer(content, AVRO | {"doc": doc}, [{"Tail": "N1", "at": 1}])
    result = check_of(headrace, home, "avro", content.getvalue())
    assert result.exit_code == (0 if doc else 1)
    assert all("tail is missing, but there is 'Tail'" in detail for detail in details(result))


def check_of(headrace, home, kind, content, *, suffix=None):
    job = home / "conf/jobs/demo.yaml"
    job.write_text(job.read_text().replace("{path: events}", f"{{path: events, format: {kind}}}"))
    (home / "events" / "2013-01-31.parquet").unlink()
    (home / "events" / f"a.{suffix or kind}").write_bytes(content)
    return headrace("check --json")


def test_damaged_newest_file_fails_unless_quarantined(headrace, home):
    (home / "events" / "2013-02-01.parquet").write_text("no Parquet")
    result = headrace("check --json")
    assert result.exit_code == 1
    assert any("the newest file, cannot be read" in detail for detail in details(result))
    job = home / "conf/jobs/demo.yaml"
    job.write_text(job.read_text().replace("{path: events}", "{path: events, on_bad_file: quarantine}"))
    assert headrace("check --json").exit_code == 0


def test_checks_of_dags_leave_input_to_runs(headrace, home):
    """The run of a DAG may need other files than the newest one, and only a task `run` that fails holds up the next runs."""
    (home / "events" / "2013-02-01.parquet").write_text("no Parquet")
    result = headrace("check --no-sample --json")
    assert result.exit_code == 0
    assert any("the newest file, cannot be read" in detail for detail in details(result))
    shutil.rmtree(home / "events")
    result = headrace("check --no-sample --json")
    assert (result.exit_code, findings(result)["source events"]) == (0, "warn")


def test_held_job_is_a_warning_unless_strict(headrace, state, at_nine):
    state.hold(until=at_nine.now() + 60_000)
    assert findings(headrace("check --json"))["lease"] == "warn"
    assert headrace("check --strict").exit_code == 1


def test_expired_lease_counts_as_free(headrace, state, at_nine):
    state.hold(until=at_nine.now())
    assert findings(headrace("check --json --strict"))["lease"] == "ok"


def test_wrong_configuration_ends_with_two(headrace, home):
    (home / "conf/jobs/demo.yaml").write_text("job: demo\n")
    assert headrace("check").exit_code == 2


def test_thresholds_contradicting_defaults_are_reported_before_runs(headrace, home):
    with (home / "conf/jobs/demo.yaml").open("a") as file:
        file.write("execution: {upsert-materialize: {adaptive.threshold.high: 30}}\n")
    result = headrace("check")
    assert result.exit_code == 2
    assert "demo.yaml:6: execution.upsert-materialize: adaptive.threshold.low must be" in result.stderr
    assert "not 40 and 30 (low: the default on rocksdb)" in result.stderr


def test_doctor_looks_at_machine_and_jobs(headrace, home, monkeypatch):
    monkeypatch.setattr(doctor, "java", lambda _: Finding("java", "ok", "17"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    output = findings(headrace("doctor --json"))
    assert output["python"] == output["packages"] == output["job demo"] == output["folder of state"] == "ok"


def test_doctor_names_the_language_of_the_engine(headrace, home):
    listed = json.loads(headrace("doctor --job demo --json").stdout)["findings"]
    (engine,) = [finding for finding in listed if finding["check"] == "engine"]
    assert (engine["outcome"], engine["detail"]) == ("ok", native.runs_in)


def test_doctor_without_java_says_how_to_get_one(headrace, home, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = headrace("doctor --job demo")
    assert result.exit_code == 1
    assert "no Java 17 or newer: JAVA_HOME is not set" in result.stdout
    assert "Run: headrace setup" in result.stdout


def test_doctor_outside_a_project_examines_the_machine(tmp_path, headrace, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "conf").rename(tmp_path / "not_conf")
    monkeypatch.chdir(tmp_path / "elsewhere")
    output = findings(headrace("doctor --json"))
    assert (output["python"], output["packages"], output["project"]) == ("ok", "ok", "warn")
    assert headrace("doctor --job demo").exit_code == 2


def test_check_without_java_fails(headrace, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/no/java/here")
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["java"]) == (1, "fail")
    assert "/no/java/here/bin/java is not a Java that runs" in result.stdout


def test_check_without_jars_fails(headrace, home):
    profile = home / "conf/clusters/local.yaml"
    profile.write_text(profile.read_text().replace("connectors: []", "connectors: [delta]"))
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["jars of cluster local"]) == (1, "fail")
    assert "Run: headrace setup" in result.stdout


def test_local_runner_needs_no_java(headrace, home, monkeypatch):
    monkeypatch.setattr("headrace.provision.java.find_java", lambda _: None)
    profile = home / "conf/clusters/local.yaml"
    profile.write_text(f"{profile.read_text()}runner: local\n")
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["runner"]) == (0, "ok")
    assert not {"java", "pyspark", "jars of cluster local"} & findings(result).keys()


def test_check_refuses_a_pyspark_that_does_not_fit(headrace, monkeypatch):
    monkeypatch.setattr(pyspark_version, "_python_version", lambda: "3.5.1")
    result = headrace("check --json")
    assert (result.exit_code, findings(result)["pyspark"]) == (1, "fail")
    assert "pyspark 3.5.1 is installed, and Delta's jars are made for Spark 4.0, 4.1 and 4.2" in result.stdout


def test_doctor_continues_after_a_broken_job(headrace, home):
    (home / "conf/jobs/broken.yaml").write_text("job: broken\n")
    output = findings(headrace("doctor --json"))
    assert (output["job broken"], output["job demo"]) == ("fail", "ok")


def test_full_disk_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10, used=9, free=1))
    assert doctor._folder("state", tmp_path / "not" / "yet").outcome == "fail"


def test_check_opens_the_log_once(headrace, state, monkeypatch):
    opened = []
    read = CheckpointLog.__init__

    def counted(log, *arguments):
        opened.append(log)
        read(log, *arguments)

    monkeypatch.setattr(CheckpointLog, "__init__", counted)
    headrace("check demo")
    assert len(opened) == 1
