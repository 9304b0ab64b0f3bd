"""Writers that need Spark: large merges, and messages of Kafka.

Producers wait for all replicas and number their messages (Kafka's defaults since 3.0, `acks=all` and `enable.idempotence`), so no
message is lost, and a partition keeps the order in which its messages are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from headrace.config import JobConfig, SinkConfig
from headrace.sinks.kafka import ROW
from headrace.sinks.sink import SendMessages, SparkRows, WriteRows
from headrace.spark.errors import jvm_answers, send_errors, spark_errors
from headrace.spark.kafka_topic import TIMEOUTS, java_list, kafka_admin
from headrace.storage.delta_commits import CHECKPOINT_METADATA
from headrace.storage.table import ROW_KIND

_VIEW = "headrace_changes"


def writer_through(spark: SparkSession) -> WriteRows:
    """Return a writer for `Publisher` that runs in this Spark session.

    Delta reads the transaction of a MERGE from the session's configuration, which threads share. So each write gets a session of its
    own.
    """

    def write(rows: SparkRows) -> None:
        verb, number = "MERGE" if rows.keys else "append", rows.transaction.version
        with spark_errors(
            f"at the {verb} of checkpoint {number} into {rows.uri}", lambda: jvm_answers(spark.sparkContext)
        ):
            _write(_session_of(spark, rows), rows)

    return write


def _session_of(spark: SparkSession, rows: SparkRows) -> SparkSession:
    """Return a session whose next commit has the transaction of these rows."""
    own = spark.newSession()
    app_id, version = rows.transaction
    own.conf.set("spark.databricks.delta.write.txnAppId", app_id)
    own.conf.set("spark.databricks.delta.write.txnVersion", str(version))
    own.conf.set("spark.databricks.delta.commitInfo.userMetadata", f'{{"{CHECKPOINT_METADATA}": {version}}}')
    # As 96 bits, Spark's default, other readers overflow: they read times in lists as nanoseconds (years 1678 to 2262).
    own.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return own


def _write(own: SparkSession, rows: SparkRows) -> None:
    source = own.read.parquet(*map(spark_uri, rows.files))
    source.createOrReplaceTempView(_VIEW)
    table = f"delta.`{spark_uri(rows.uri)}`"
    values = {_quoted(name): _value(name, rows) for name in source.columns if name != ROW_KIND}
    names, given = ", ".join(values), ", ".join(values.values())
    if not rows.keys:
        own.sql(f"INSERT INTO {table} ({names}) SELECT {given} FROM {_VIEW} AS source")  # noqa: S608 - names are quoted
        return
    on = " AND ".join(f"target.{name} = source.{name}" for name in map(_quoted, rows.keys))
    updates = ", ".join(f"target.{name} = {value}" for name, value in values.items())
    own.sql(
        f"MERGE INTO {table} AS target USING {_VIEW} AS source ON {on} "  # noqa: S608 - names are quoted
        f"WHEN MATCHED AND source.{ROW_KIND} = '-D' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND source.{ROW_KIND} <> '-D' THEN INSERT ({names}) VALUES ({given})"
    )


def _value(name: str, rows: SparkRows) -> str:
    """Return the expression that gives a column its value."""
    column = f"source.{_quoted(name)}"
    return f"parse_json({column})" if name in rows.variants else column


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def spark_uri(uri: str) -> str:
    """Return a path or URI in Spark's form: Hadoop's S3 client has the scheme s3a."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


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
    value = f.to_json(f.struct(*map(_quoted, names)), {"ignoreNullFields": "false"})
    key = f.lit(None) if config.key is None else f.col(_quoted(config.key))
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
