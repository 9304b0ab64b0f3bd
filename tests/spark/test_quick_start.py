"""What makes Spark and its Python workers start sooner is in use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from headrace.provision.class_archive import ClassArchive
from headrace.provision.java import require_java
from headrace.provision.pyspark import spark_home
from tests.jobs.home import PROJECT


def test_spark_loads_its_classes_from_the_archive(tmp_path):
    """`make setup` has made it."""
    options = ClassArchive(PROJECT, require_java(PROJECT), spark_home()).options()
    log = tmp_path / "classes.log"
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"{options} -Xlog:class+load:file={log}"}
    subprocess.run([spark_home() / "bin/spark-submit", "--version"], env=environment, capture_output=True, check=True)
    sparks = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    assert len(sparks) > 20
    assert [line for line in sparks if "shared objects file (top)" not in line and "Lambda" not in line] == []


def test_workers_have_the_compiled_pyspark(spark):
    files = spark.sparkContext.parallelize(range(2), 2).map(lambda _: __import__("pyspark.worker").__file__).collect()
    assert {Path(file) for file in files} == {Path(pyspark.__file__)}
