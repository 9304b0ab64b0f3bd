"""Publishing large merges through Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from headrace.plan.columns import ROW_KIND
from headrace.sinks.sink import SparkMerge
from headrace.spark.spark_errors import jvm_answers, spark_errors
from headrace.tables.delta_commit_info import CHECKPOINT_METADATA

_VIEW = "headrace_changes"


def merge_through(spark: SparkSession) -> SparkMerge:
    """Return a merge for `Publisher` that runs in this Spark session.

    Delta reads a MERGE's transaction from the session's configuration, which threads share. So each merge gets a session of its own.
    """

    def merge(uri: str, files: Sequence[str], keys: Sequence[str], *, app_id: str, version: int) -> None:
        with spark_errors(f"at the MERGE of checkpoint {version} into {uri}", lambda: jvm_answers(spark.sparkContext)):
            write(uri, files, keys, app_id=app_id, version=version)

    def write(uri: str, files: Sequence[str], keys: Sequence[str], *, app_id: str, version: int) -> None:
        own = spark.newSession()
        own.conf.set("spark.databricks.delta.write.txnAppId", app_id)
        own.conf.set("spark.databricks.delta.write.txnVersion", str(version))
        own.conf.set("spark.databricks.delta.commitInfo.userMetadata", f'{{"{CHECKPOINT_METADATA}": {version}}}')
        source = own.read.parquet(*map(spark_uri, files))
        source.createOrReplaceTempView(_VIEW)
        columns = [name for name in source.columns if name != ROW_KIND]
        on = " AND ".join(f"target.`{key}` = source.`{key}`" for key in keys)
        updates = ", ".join(f"target.`{name}` = source.`{name}`" for name in columns)
        names = ", ".join(f"`{name}`" for name in columns)
        values = ", ".join(f"source.`{name}`" for name in columns)
        own.sql(
            f"MERGE INTO delta.`{spark_uri(uri)}` AS target USING {_VIEW} AS source ON {on} "  # noqa: S608 - names are checked identifiers
            f"WHEN MATCHED AND source.{ROW_KIND} = '-D' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {updates} "
            f"WHEN NOT MATCHED AND source.{ROW_KIND} <> '-D' THEN INSERT ({names}) VALUES ({values})"
        )

    return merge


def spark_uri(uri: str) -> str:
    """Return a path or URI in Spark's form: Hadoop's S3 client has the scheme s3a."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri
