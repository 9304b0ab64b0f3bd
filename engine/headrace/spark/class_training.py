"""Small driver that loads the classes of Spark that runs need. `headrace.provision.class_archive` submits it, and archives them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession


def train() -> None:
    """Run a job of Spark's core with tasks in Python, as stages are; then jobs of Spark SQL over Parquet files."""
    conf = SparkConf().setAppName("headrace-class-training")
    conf.set("spark.ui.enabled", "false").set("spark.python.unix.domain.socket.enabled", "true")
    context = SparkContext(conf=conf)
    with tempfile.TemporaryDirectory() as folder:
        context.parallelize(range(2), 2).map(lambda number: number + 1).collect()
        session, file = SparkSession.builder.getOrCreate(), str(Path(folder) / "rows")
        session.range(100).selectExpr("id", "cast(id as string) as text", "id % 2 as task").write.parquet(file)
        shuffled = session.read.parquet(file).repartition(2, "task").sortWithinPartitions("id")
        shuffled.mapInArrow(lambda batches: batches, "id long, text string, task long").collect()
        shuffled.groupBy("task").count().collect()
    context.stop()
