"""Spark session of a run."""

from __future__ import annotations

import os
import sys

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.config import ClusterConfig, JobConfig
from headrace.errors import ClusterError, ConfigError
from headrace.provision.jars import absent_jars, how_to_get
from headrace.provision.java import require_java


def session(config: JobConfig) -> SparkSession:
    """Return the session that spark-submit made, or one with the settings of the job's cluster profile.

    Raises `ConfigError` for missing jars, and `ClusterError` when Spark cannot be started.
    """
    profile, is_submitted = config.profile, _is_submitted()
    if (executors := profile.spark.get("spark.pyspark.python")) is not None:
        os.environ["PYSPARK_PYTHON"] = executors  # a setting overrides the environment, as for spark-submit
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(f"headrace-{config.job}")
    if not is_submitted:
        os.environ["JAVA_HOME"] = str(require_java(config.home))
        builder = builder.master(_with_retries(profile.master))
        for key, value in _settings(profile).items():
            builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        raise ClusterError(
            f"Spark cannot be started with master '{profile.master}' of {profile.file}: {error}\nNothing was done. See what Java "
            "says above; 'headrace doctor' looks at Java, jars and pyspark. Then run again."
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    if not is_submitted:  # after spark-submit, --py-files has shipped them
        for file in profile.py_files:
            spark.sparkContext.addPyFile(file)
    return spark


def _is_submitted() -> bool:
    """Return whether spark-submit has started this driver, and so set master, settings and jars."""
    return not {"SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT"}.isdisjoint(os.environ)


def _settings(profile: ClusterConfig) -> dict[str, str]:
    """Return the profile's settings, and those that spark-submit takes as options."""
    shipped = {
        "spark.jars": _present(profile) if profile.jars else (),
        "spark.files": profile.files,
        "spark.archives": profile.archives,
    }
    return {**profile.spark, **{key: ",".join(paths) for key, paths in shipped.items() if paths}}


def _present(profile: ClusterConfig) -> tuple[str, ...]:
    missing = absent_jars(profile.jars)
    if missing:
        listed = ", ".join(missing)
        raise ConfigError(f"{profile.file}: jars: there is no {listed}. Spark was not started. {how_to_get(missing)}")
    return profile.jars


def _with_retries(master: str) -> str:
    """Return a local master with four tries for each task (`local[2]` as `local[2,4]`): a killed Python worker must not fail the run."""
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},4]"
    return master
