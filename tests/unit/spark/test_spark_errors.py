"""Spark's errors when the environment fails: exit codes 8 and 13, and 70 only for bugs (no JVM: the texts are Spark's)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors.exceptions.base import PySparkException
from pyspark.errors.exceptions.captured import UnknownException

from headrace.commit.protocol import open_job
from headrace.errors import ClusterError, ConfigError, StorageError, UserFunctionError
from headrace.sinks.sink import SparkWriters
from headrace.spark.errors import spark_errors
from headrace.storage.refusals import StoreError, doing
from headrace.storage.table import VersionTakenError
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.memory_job import MemoryJob, commit_batch

ABORTED = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0"


def java(first, *causes):
    """An error of the JVM: its message, and the causes in its stack trace."""
    error = UnknownException.__new__(UnknownException)  # its constructor asks the JVM
    error._desc, error._cause = first, None
    error._stackTrace = "\n\tat org.apache.spark.Somewhere(Somewhere.scala:1)\n".join(
        [first, *(f"Caused by: {cause}" for cause in causes)]
    )
    return error


def raised(error, *, alive=True):
    with pytest.raises(Exception) as caught, spark_errors("at the MERGE", lambda: alive):  # noqa: PT011 - which one is the question
        raise error
    return caught.value


DEAD = [
    Py4JNetworkError("Answer from Java side is empty"),
    Py4JError("An error occurred while calling o53.collectToPython"),
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(104, "Connection reset by peer"),
    EOFError(),
]


@pytest.mark.parametrize("error", DEAD)
def test_killed_jvm_is_reported_with_advice(error):
    meant = raised(error, alive=False)
    assert (type(meant), meant.exit_code) == (ClusterError, 13)
    assert "Spark's JVM is gone at the MERGE" in str(meant)
    assert "run again" in str(meant)


LOST = [
    java(
        f"{ABORTED}: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "java.io.EOFException",
    ),
    java(
        f"{ABORTED}: ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Container killed"
    ),
    java(ABORTED, "java.lang.OutOfMemoryError: Java heap space"),
    java("Job 3 cancelled because SparkContext was shut down"),
]


@pytest.mark.parametrize("error", LOST)
def test_lost_workers_become_a_cluster_error(error):
    assert isinstance(raised(error), ClusterError)


def test_java_error_message_is_shown():
    call = "An error occurred while calling o166.collectToPython."
    meant = raised(
        java(f"{call}\n: org.apache.spark.SparkException: {ABORTED}: Python worker exited unexpectedly (crashed)")
    )
    assert "gave up trying: org.apache.spark.SparkException: Job aborted" in str(meant)
    assert "collectToPython" not in str(meant)


REFUSED = [
    java("[TASK_WRITE_FAILED] Task failed while writing rows", "java.io.IOException: No space left on device"),
    java("o.a.s.SparkException: failed", "java.nio.file.FileSystemException: /lake/x: Read-only file system"),
    java("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file"),
    java("[DELTA_LOG_FILE_MALFORMED] Failed to parse the Delta log"),
    java("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 2) are not contiguous"),
    java("s3 failed", "software.amazon.awssdk.services.s3.model.S3Exception: Access Denied"),
    java(
        f"{ABORTED}: org.apache.spark.api.python.PythonException: Traceback\nFileNotFoundError: [Errno 2] No such file: 'x'"
    ),
]


@pytest.mark.parametrize("error", REFUSED)
def test_storage_exception_becomes_a_storage_error(error):
    meant = raised(error)
    assert isinstance(meant, StoreError)
    with pytest.raises(StorageError, match="storage refused checkpoint 7") as caught, doing("checkpoint 7"):
        raise meant
    assert caught.value.exit_code == 8


CONFLICTS = [
    java("[DELTA_CONCURRENT_APPEND] Files were added to the root of the table by a concurrent update"),
    java(
        "commit failed", "io.delta.exceptions.ConcurrentWriteException: A concurrent transaction has written new data"
    ),
    java("[DELTA_METADATA_CHANGED] The metadata of the Delta table has been changed by a concurrent update"),
]


@pytest.mark.parametrize("error", CONFLICTS)
def test_conflict_is_a_taken_version(error):
    assert isinstance(raised(error), VersionTakenError)


BUGS = [
    java("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FROM'"),
    java(f"{ABORTED}: org.apache.spark.api.python.PythonException: Traceback\nKeyError: 'x'"),
    PySparkException("something else"),
    Py4JError("An error occurred while calling o1.x. Trace: Method x([]) does not exist"),
]


@pytest.mark.parametrize("error", BUGS)
def test_unknown_exception_stays_a_bug(error):
    assert raised(error) is error


@pytest.mark.parametrize("error", [ConfigError("no jars"), UserFunctionError("f", None, "r", "t")])
def test_headrace_errors_pass_unchanged(error):
    assert raised(error, alive=False) is error


# ------------------------------------------------------------------------------------------------- publishing


@pytest.fixture
def memory_job():
    yield MemoryJob("spark-errors")
    forget_disk("spark-errors")


class FailingMerge:
    """A session whose MERGE fails once with Spark's error; afterwards the table is unchanged."""

    def __init__(self, error):
        self._error = error

    def __call__(self, rows):
        with spark_errors("at the MERGE", lambda: True):
            raise self._error


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (REFUSED[0], "storage refused checkpoint 1 in sink 'lines_by_item'.*No space left"),
        (CONFLICTS[0], "somebody else wrote"),
    ],
)
def test_sink_with_merge_error_gets_rows_later(memory_job, error, match):
    eager = replace(memory_job.config, publish=replace(memory_job.config.publish, spark_above_rows=0))
    with (
        pytest.raises(StorageError, match=match) as caught,
        open_job(eager, "run", create=True, writers=SparkWriters(write=FailingMerge(error))) as job,
    ):
        commit_batch(job, "ann")
    assert caught.value.exit_code == 8
    with memory_job.open():
        pass
    assert memory_job.sink_rows("lines_by_item", "customer") == ["ann"]
