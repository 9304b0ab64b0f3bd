"""Translation of errors of Kafka's clients in Spark's JVM into errors that say who has to act."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.config import SinkConfig, SourceConfig
from headrace.errors import ConfigError, HeadraceError, ServiceError, SourceError, StorageError
from headrace.spark.spark_errors import in_short, spark_errors, text_of

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
    with _translated(f"while source '{source}' was read", lambda text: _meant(text, source, config), is_alive):
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


def _meant(text: str, source: str, config: SourceConfig) -> HeadraceError | None:
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
