"""Runs on Spark Connect without a server: a stand-in runs what the driver sends, and no server answers."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from headrace import __version__, spark
from headrace.cli import findings
from headrace.config import load_cluster
from headrace.errors import ClusterError, ConfigError, SparkNeededError, StorageError
from headrace.log.checkpoint import Kind
from headrace.plan.loader import plan_of
from headrace.provision import pyspark as installed
from headrace.run.options import RunOptions
from headrace.spark import connect, connect_session
from headrace.spark.tasks import stored_parts
from headrace.storage.storage import Storage
from tests.jobs.home import PURCHASES, Home
from tests.jobs.local_runs import LocalRuns
from tests.jobs.outcome import checkpoints, outcome
from tests.jobs.purchase_files import write_days

NOBODY = {"master": "sc://127.0.0.1:1", "parallelism": 2, "jars": []}
SECRET = "hunter2"  # noqa: S105  of no service


@pytest.fixture
def home(tmp_path):
    project = Home(tmp_path / "connect")
    project.write_cluster("local", NOBODY)
    write_days(project.input, range(2))
    return project


def run(home, **options):
    return spark.run(home.config(), RunOptions(run_id="test"), lambda _: None, **options)


class StandIn:
    """A session that pickles the function of a query, as Spark does, and runs it in this process."""

    def __init__(self) -> None:
        self.tags: list[str] = []

    def addTag(self, tag):
        self.tags.append(tag)

    def range(self, first, end, step, partitions):
        assert (first, step, partitions) == (0, 1, end)
        return SimpleNamespace(mapInArrow=lambda function, _: self._query(function, end))

    def _query(self, function, count):
        sent = cloudpickle.dumps(function)

        def collected():
            function = cloudpickle.loads(sent)
            batches = [iter([pa.record_batch([pa.array([number])], names=["id"])]) for number in reversed(range(count))]
            return pa.Table.from_batches([batch for own in batches for batch in function(own)])

        return SimpleNamespace(toArrow=collected)


@pytest.fixture
def session(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(connect, "opened", lambda _: stand_in)
    monkeypatch.setattr(connect, "close", lambda _: None)
    return stand_in


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["files", "inline"])
def test_queries_equal_local_tasks(home, tmp_path, session, monkeypatch, large):
    alone = Home(tmp_path / "alone")
    write_days(alone.input, range(2))
    LocalRuns()(alone, parallelism=2)
    files = []

    def stored(parts, folder, file):
        files.append(file)
        return stored_parts(parts, folder, file)

    monkeypatch.setattr(connect, "LARGE", large)
    monkeypatch.setattr(connect, "stored_parts", stored)
    assert run(home).stopped_because == "drained"
    assert outcome(home.config()) == outcome(alone.config())
    assert {*session.tags} == {"headrace-purchases"}
    assert not [*home.folder.rglob("tasks-*")]
    assert bool(files) is (large == 0)


def test_server_that_nobody_runs_leaves_the_job_whole(home, monkeypatch):
    monkeypatch.setattr(connect_session, "TRIES", 1)
    with pytest.raises(ClusterError, match="at sc://127.0.0.1:1 does not answer") as caught:
        run(home)
    assert caught.value.exit_code == 13
    assert [row.kind for row in checkpoints(home.config())] == [Kind.INITIAL]


@pytest.mark.parametrize(
    "master", ["sc://", "sc://host:x", f"sc://host;token={SECRET}", "sc://host/path/;a=b", "sc://host/;a"]
)
def test_wrong_address_of_a_server_is_refused(home, master):
    home.write_cluster("local", {**NOBODY, "master": master})
    with pytest.raises(ConfigError, match="is no address of a Connect server") as caught:
        run(home)
    assert SECRET not in str(caught.value)


def test_run_without_work_opens_no_session(home):
    for file in home.input.iterdir():
        file.unlink()
    assert run(home).stopped_because == "drained"


def test_run_without_spark_opens_no_session(home):
    with pytest.raises(SparkNeededError):
        run(home, may_start=False)


@pytest.mark.parametrize(("jars", "outcomes"), [([], ["ok"]), (["a.jar"], ["fail", "ok"])])
def test_check_looks_for_neither_java_nor_jars(home, monkeypatch, jars, outcomes):
    monkeypatch.setenv("PATH", "/nowhere")
    home.write_cluster("local", {**NOBODY, "jars": jars})
    listed = [*findings.runner(home.config(), plan_of(home.config().code))]
    assert [finding.outcome for finding in listed] == outcomes
    assert "no Java is needed here" in listed[-1].detail


def test_refusal_names_each_key_of_the_profile(home):
    extra = {"deploy_mode": "cluster", "connection": "mine", "jars": ["a.jar"], "py_files": ["s3://code/a.zip"]}
    home.write_cluster("local", {**NOBODY, **extra})
    with pytest.raises(ConfigError, match=r"is a server of Spark Connect\. Nothing was run\.") as caught:
        run(home)
    for text in ("deploy_mode cluster", "connection: 'mine'", "jars: a Connect server", "'s3://code/a.zip' is not on"):
        assert text in str(caught.value)


def test_refusal_names_sinks_that_need_spark(tmp_path):
    topic = {"path": "outbox", "mode": "append", "format": "kafka", "servers": "k:9092", "topic": "t"}
    home = Home(tmp_path, {**PURCHASES, "sinks": {**PURCHASES["sinks"], "reminders": topic}})
    home.write_cluster("local", NOBODY)
    with pytest.raises(ConfigError, match="sink 'reminders' sends its rows to a topic of Kafka"):
        run(home)


def test_missing_client_of_connect_is_named(home, monkeypatch):
    monkeypatch.setattr(installed, "_is_there", lambda name: name != "grpc")
    with pytest.raises(ConfigError, match=r"not installed: grpc\. Run: pip install 'headrace\[connect\]'"):
        run(home)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"absent": "No module named 'msgspec'"}, "cannot import Headrace: No module named 'msgspec'"),
        ({"headrace": "0.1.0"}, "has Headrace 0.1.0"),
        ({"hash_seed": "random"}, "without PYTHONHASHSEED"),
        ({"sees_folder": False}, "do not see the files of the job in /job: put"),
        ({"sees_folder": "StorageError: denied"}, "in /job (StorageError: denied)"),
        ({}, None),
    ],
)
def test_worker_that_lacks_something_is_described(facts, expected):
    whole = {"python": "python3", "hash_seed": "0", "headrace": __version__, "sees_folder": True}
    problems = [*connect_session._problems(whole | facts, "/job")]
    assert len(problems) == (expected is not None)
    assert expected is None or expected in problems[0]


def test_token_of_a_server_is_never_shown(home):
    home.write_cluster("local", {**NOBODY, "master": f"sc://127.0.0.1:1/;token={SECRET}"})
    profile = load_cluster("local", home.folder)
    assert profile.shown_master == "sc://127.0.0.1:1/;***"
    assert SECRET not in yaml.safe_dump(profile.shown()) + repr(profile)


Parts = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers() | st.text(max_size=5)), min_size=1)


@given(parts=Parts)
def test_stored_description_has_no_secrets(tmp_path_factory, parts):
    secret = {"batch": {"key": SECRET}, "async_io": [SECRET]}
    folder, own = Storage(str(tmp_path_factory.mktemp("stored"))), [{**part, **secret} for part in parts]
    read = stored_parts([msgspec.json.encode(part) for part in own], folder, "tasks")
    again = [msgspec.json.decode(part) for part in cloudpickle.loads(cloudpickle.dumps(read))()]
    assert again == own
    assert SECRET not in folder.read("tasks").decode()


def test_lost_description_is_an_error_of_storage():
    text = "PythonException: ...\nheadrace.errors.StorageError: could not read s3://b/tasks-1: gone.\n SQLSTATE: 38000"
    with (
        pytest.raises(StorageError, match="could not read s3://b/tasks-1"),
        connect_session.connect_errors("sc://s", "here"),
    ):
        raise PySparkException(text)


OTHER_PYTHON = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "worker.py", line 3, in main
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker: 3.12, in driver: 3.11.
Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set.
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OTHER_PYTHON, "[PYTHON_VERSION_MISMATCH] Python in worker: 3.12, in driver: 3.11."),
        ('<RPC that terminated with:\n\tdetails = "Connection refused"\n>', "Connection refused"),
        ("[CANNOT_MODIFY_CONFIG] no", "no"),
    ],
)
def test_error_shows_the_line_that_names_it(text, expected):
    assert connect_session._details(PySparkException(text)).endswith(expected)
