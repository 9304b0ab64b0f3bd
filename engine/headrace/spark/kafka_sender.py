"""Sender of sinks' rows to topics, through Spark's writer and its producers.

Producers wait for all replicas and number their messages (Kafka's defaults since 3.0, `acks=all` and `enable.idempotence`), so no
message is lost, and a partition keeps the order in which its messages are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from headrace.config import JobConfig, SinkConfig
from headrace.sinks.kafka import ROW
from headrace.sinks.sink import SendMessages
from headrace.spark.kafka_errors import send_errors
from headrace.spark.kafka_topic import TIMEOUTS, java_list, kafka_admin
from headrace.spark.sinks import spark_uri
from headrace.spark.spark_errors import jvm_answers

_FILE, _NUMBER, _POSITION = "__file", "__number", "__position"


def sender_through(spark: SparkSession, config: JobConfig) -> SendMessages:
    """Return the function that sends rows of a job's sinks in this Spark session."""

    def send(sink: str, files: Sequence[str], headers: Mapping[str, str]) -> None:
        bound = config.sinks[sink]
        with send_errors(sink, bound, lambda: jvm_answers(spark.sparkContext)):
            _check_topic(spark, sink, bound)
            _send(spark, bound, files, headers)

    return send


def _check_topic(spark: SparkSession, sink: str, config: SinkConfig) -> None:
    """Check that the topic exists. The admin client answers sooner than a producer, and does not create the topic."""
    jvm = spark._jvm  # noqa: SLF001 - pyspark has no other way to the JVM
    kept = "The rows are committed, and the next run sends them."
    with kafka_admin(jvm, config, f"sink '{sink}' sends to a topic of Kafka", kept) as admin:
        admin.describeTopics(java_list(jvm, [config.topic or ""])).allTopicNames().get()


def _send(spark: SparkSession, config: SinkConfig, files: Sequence[str], headers: Mapping[str, str]) -> None:
    """Send each row as a JSON object. Rows with equal keys are in one Spark partition, in the order of the files and their rows."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    rows = own.read.parquet(*map(spark_uri, files))
    names = rows.columns
    placed = rows.select("*", f.col("_metadata.file_name").alias(_FILE), f.col("_metadata.row_index").alias(_POSITION))
    order = f.array(*(f.lit(file.rpartition("/")[2]) for file in files))
    value = f.to_json(f.struct(*(f"`{name}`" for name in names)), {"ignoreNullFields": "false"})
    key = f.lit(None) if config.key is None else f.col(f"`{config.key}`")
    messages = placed.select(
        key.cast("string").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        _headers(headers).alias("headers"),
        f.array_position(order, f.col(_FILE)).alias(_NUMBER),
        _POSITION,
    )
    by = _NUMBER if config.key is None else "key"
    sent = messages.repartition(by).sortWithinPartitions(_NUMBER, _POSITION).select("key", "value", "headers")
    options = {**TIMEOUTS, "kafka.max.block.ms": "30000", "kafka.delivery.timeout.ms": "60000", **config.options}
    sent.write.format("kafka").options(
        **options,
        **{"kafka.bootstrap.servers": config.servers or "", "topic": config.topic or "", "includeHeaders": "true"},
    ).save()


def _headers(headers: Mapping[str, str]) -> Column:
    row = f.concat_ws(":", _FILE, f.col(_POSITION).cast("string"))
    pairs = [*((name, f.lit(value)) for name, value in headers.items()), (ROW, row)]
    return f.array(*(f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in pairs))
