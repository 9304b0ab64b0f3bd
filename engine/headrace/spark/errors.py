"""Translation of errors of Spark, its JVM and Kafka into errors that say who has to act. Others are bugs: exit code 70.

A JVM that the kernel has killed causes errors of sockets, or does not answer, so the translation checks whether it still runs.
Errors on executors reach the driver as text, which is searched for the names of Java's exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from headrace.config import SinkConfig, SourceConfig
from headrace.errors import ClusterError, ConfigError, HeadraceError, ServiceError, SourceError, StorageError
from headrace.storage.refusals import StoreError, TableRefusedError
from headrace.storage.table import VersionTakenError

if TYPE_CHECKING:
    from pyspark import SparkContext

if TYPE_CHECKING or find_spec("py4j") is not None:
    from py4j.protocol import Py4JError
else:

    class Py4JError(Exception):
        """Error of py4j, which pyspark-client does without: it reaches no JVM."""


_LOST = re.compile(
    r"Python worker exited unexpectedly|ExecutorLostFailure|Executor \S+ (?:exited|lost)|OutOfMemoryError|"
    r"Container killed|Application .* (?:killed|failed)|All masters are unresponsive|Master removed our application|"
    r"SparkContext was shut down|stopped SparkContext|JAVA_GATEWAY_EXITED"
)
"""Texts that mean: an executor, a Python worker or the cluster is gone, or never started."""

_CONFLICT = re.compile(
    r"DELTA_CONCURRENT_\w+|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|Concurrent(?:Write|Append|Delete\w+|Transaction|Modification)Exception|"
    r"(?:Metadata|Protocol)ChangedException"
)
_RULES = re.compile(
    r"DELTA_VIOLATE_CONSTRAINT|DELTA_NOT_NULL_CONSTRAINT|DELTA_CANNOT_MODIFY_APPEND_ONLY|DELTA_IDENTITY_COLUMNS_\w+|DELTA_EXCEED_CHAR_VARCHAR_LIMIT|"
    r"NOT_NULL_ASSERT_VIOLATION|EXCEED_LIMIT_LENGTH|MALFORMED_RECORD_IN_PARSING|MALFORMED_VARIANT|CAST_OVERFLOW"
)
"""Conditions with which Delta and Spark refuse rows for what the table is."""
_STORAGE = re.compile(
    r"No space left on device|Read-only file system|Permission denied|AccessDenied|Disk quota exceeded|"
    r"java\.io\.(?!EOFException|NotSerializableException|InvalidClassException)\w*Exception|java\.nio\.file\.\w+Exception|"
    r"FAILED_READ_FILE|PATH_NOT_FOUND|DELTA_(?:LOG_\w+|STATE_RECOVER\w+|TRUNCATED_TRANSACTION_LOG|VERSIONS_NOT_CONTIGUOUS|"
    r"MISSING_(?:DELTA_TABLE|TRANSACTION_LOG|PART_FILES)\w*|TABLE_NOT_FOUND|PATH_DOES_NOT_EXIST|EMPTY_DIRECTORY|FILE_\w*NOT_FOUND\w*)|"
    r"S3Exception|AmazonServiceException|SdkClientException|ParquetDecodingException|JsonParseException|"
    r"(?:FileNotFound|Permission|NotADirectory|IsADirectory|FileExists|Timeout|Connection\w*|OS)Error: \[?"
)
"""Texts that mean: a disk or an object store refuses, or a file or a table's log is damaged or gone."""

_SHOWN = 600
"""Number of characters of Spark's text that an error shows."""


@contextmanager
def spark_errors(doing: str, is_alive: Callable[[], bool]) -> Iterator[None]:
    """Translate Spark's errors in the block. `doing` says in the message what was being done.

    Raises `ClusterError` when the JVM, an executor or a Python worker is gone, `VersionTakenError` when a table was changed
    meanwhile, `TableRefusedError` for rows that a table refuses for what it is, and `StoreError` when the storage refuses.
    """
    try:
        yield
    except HeadraceError:
        raise
    except (Py4JError, PySparkException, OSError, EOFError) as error:
        raise (_meant(error, doing, is_alive) or error) from error


def jvm_answers(context: SparkContext) -> bool:
    """Return whether the JVM of a context answers."""
    try:
        context._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]  # noqa: SLF001 - py4j has no other way
    except (Py4JError, OSError, EOFError, AttributeError):
        return False
    return True


def _meant(error: Exception, doing: str, is_alive: Callable[[], bool]) -> Exception | None:
    text = text_of(error)
    short = in_short(text)
    if not is_alive():
        return ClusterError(
            f"Spark's JVM is gone {doing} ({short}). The kernel may have killed it because memory ran out ('dmesg' shows this), or "
            "somebody else did. What was committed stays; everything else is undone: run again. If it happens again, give the "
            "machine more memory, or the job less work at once (sources.*.max_files_per_batch, parallelism)."
        )
    if _LOST.search(text):
        return ClusterError(
            f"Spark lost an executor or a Python worker {doing}, and gave up trying: {short}. Most often memory ran out. What was "
            "committed stays: run again. If it happens again, give the executors more memory, or the job less work at once "
            "(sources.*.max_files_per_batch, parallelism)."
        )
    if _CONFLICT.search(text):
        return VersionTakenError(short)
    if _RULES.search(text):
        return TableRefusedError(short)
    return StoreError(short) if _STORAGE.search(text) else None


def text_of(error: BaseException) -> str:
    """Return the whole text of an error: its message, Java's stack trace, and those of its causes.

    An error that pyspark has captured reads its text from the JVM, which may be gone; so this reads its parts, which are in Python.
    """
    description = getattr(error, "_desc", None)
    parts = [str(error)] if description is None else [str(description), str(getattr(error, "_stackTrace", None) or "")]
    cause = getattr(error, "_cause", None) or error.__cause__
    if isinstance(cause, BaseException):
        parts.append(text_of(cause))
    return f"{type(error).__name__}: " + "\n".join(filter(None, parts))


def in_short(text: str) -> str:
    """Return the first line of a text (Java's message if the line only names a call), and the last cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    java = [line.removeprefix(": ") for line in lines[1:2] if line.startswith(": ")]
    causes = [line for line in lines if line.startswith("Caused by:")]
    shown = [*(java or lines[:1]), *causes[-1:]]
    return f"{'; '.join(shown):.{_SHOWN}}".rstrip(".")


_UNKNOWN: Final = re.compile(r"UnknownTopic\w*Exception|InvalidTopicException")
_REFUSED: Final = re.compile(r"\w*(?:Authorization|Authentication|SslHandshake)\w*Exception")
_EXPIRED: Final = re.compile(r"OffsetOutOfRange|KAFKA_DATA_LOSS|data (?:may have been|was) lost", re.IGNORECASE)
_AWAY: Final = re.compile(
    r"errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|NotLeader\w*|LeaderNotAvailable|NotEnoughReplicas)\w*Exception|"
    r"No resolvable bootstrap|TimeoutException"
)
_SETTINGS: Final = re.compile(
    r"ConfigException|Failed to create new KafkaAdminClient|Failed to construct kafka (?:consumer|producer)"
)
_TOO_LARGE: Final = re.compile(r"RecordTooLargeException|RecordBatchTooLargeException")


@contextmanager
def kafka_errors(source: str, config: SourceConfig, is_alive: Callable[[], bool]) -> Iterator[None]:
    """Translate errors of the block into errors that name the source and its topic.

    Raises `SourceError` for a topic that is missing, refuses, or has lost messages, `ServiceError` when no broker answers,
    `ConfigError` for settings that no client can start with, and the errors of `spark_errors`.
    """
    with _translated(
        f"while source '{source}' was read", lambda text: _meant_of_source(text, source, config), is_alive
    ):
        yield


@contextmanager
def send_errors(sink: str, config: SinkConfig, is_alive: Callable[[], bool]) -> Iterator[None]:
    """Translate errors of the block, which sends rows, into errors that name the sink and its topic.

    Raises `StorageError` for a topic that is missing or refuses, `ServiceError` when no broker answers, `ConfigError` for settings
    that no client can start with, and the errors of `spark_errors`.
    """
    with _translated(
        f"while rows of sink '{sink}' were sent", lambda text: _meant_of_sink(text, sink, config), is_alive
    ):
        yield


@contextmanager
def _translated(
    doing: str, meaning: Callable[[str], HeadraceError | None], is_alive: Callable[[], bool]
) -> Iterator[None]:
    """Translate errors of a living JVM by `meaning` of their text; all others as `spark_errors` does."""
    with spark_errors(doing, is_alive):
        try:
            yield
        except (Py4JError, PySparkException) as error:
            meant = meaning(text_of(error)) if is_alive() else None
            if meant is None:
                raise
            raise meant from error


def _meant_of_sink(text: str, sink: str, config: SinkConfig) -> HeadraceError | None:
    place, short = config.place, in_short(text)
    kept = "The rows are committed, in the sink's outbox; some may have been sent. The next run sends all of the checkpoint"
    if _UNKNOWN.search(text):
        return StorageError(
            f"sink '{sink}': there is no {place}. {kept}: make the topic, or mend sinks.{sink}.topic, and run again."
        )
    if refused := _REFUSED.search(text):
        return StorageError(
            f"sink '{sink}': {place} refuses this job ({refused[0]}: {short}). {kept}: mend sinks.{sink}.options, or let somebody grant "
            "it WRITE and DESCRIBE on the topic, and run again."
        )
    if too_large := _TOO_LARGE.search(text):
        return StorageError(
            f"sink '{sink}': a row is too large a message for {place} ({too_large[0]}: {short}). {kept}: raise max.message.bytes of the "
            f"topic and kafka.max.request.size in sinks.{sink}.options, and run again."
        )
    if _AWAY.search(text):
        return ServiceError(
            f"sink '{sink}': no broker answers for {place} ({short}). {kept}: run again when they are back; if they are well, look "
            f"whether sinks.{sink}.servers names them."
        )
    if _SETTINGS.search(text):
        return ConfigError(
            f"sink '{sink}': no client of Kafka can start with servers '{config.servers}' and these options ({short}). {kept}: mend "
            f"sinks.{sink}, and run again."
        )
    return None


def _meant_of_source(text: str, source: str, config: SourceConfig) -> HeadraceError | None:
    place, short, nothing = config.place, in_short(text), "Nothing was taken in."
    if _UNKNOWN.search(text):
        return SourceError(
            f"source '{source}': there is no {place}. {nothing} Make it, or mend sources.{source}.topic."
        )
    if refused := _REFUSED.search(text):
        return SourceError(
            f"source '{source}': {place} refuses this job ({refused[0]}: {short}). {nothing} Mend sources.{source}.options, or let "
            "somebody grant it READ and DESCRIBE on the topic."
        )
    if _EXPIRED.search(text):
        return SourceError(
            f"source '{source}': messages of {place} went away while they were read ({short}). {nothing} Run again: if they are gone "
            "for good, the next run names their offsets."
        )
    if _AWAY.search(text):
        return ServiceError(
            f"source '{source}': no broker answers for {place} ({short}). {nothing} Run again when they are back; if they are well, "
            f"look whether sources.{source}.servers names them."
        )
    if _SETTINGS.search(text):
        return ConfigError(
            f"source '{source}': no client of Kafka can start with servers '{config.servers}' and these options ({short}). {nothing} "
            f"Mend sources.{source}."
        )
    return None
