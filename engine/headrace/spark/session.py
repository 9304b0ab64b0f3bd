"""Spark context of a run, and its session for those that need SQL."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace import logs
from headrace.config import ClusterConfig, JobConfig
from headrace.errors import ClusterError, ConfigError
from headrace.interrupts import watch
from headrace.provision.class_archive import ClassArchive
from headrace.provision.jars import absent_jars, how_to_get
from headrace.provision.java import require_java
from headrace.provision.pyspark import daemon_settings, spark_home, submit_options


def session(config: JobConfig) -> SparkSession:
    """Return a session on the context of `context`, with the same settings. Raises the errors of `context`."""
    return session_on(context(config))


def session_on(_: SparkContext) -> SparkSession:
    """Return the session of the context that runs. The first call loads the classes of Spark SQL and of Delta, which takes a second."""
    return SparkSession.builder.getOrCreate()


def context(config: JobConfig) -> SparkContext:
    """Return a context with the options of spark-submit that the driver was given, or with the settings of the job's cluster profile.

    Raises `ConfigError` for missing jars, and `ClusterError` when Spark cannot be started.
    """
    profile = config.profile
    if (options := submit_options()) is not None:
        os.environ["PYSPARK_SUBMIT_ARGS"] = options
    is_submitted = options is not None or _is_submitted()
    if (executors := profile.spark.get("spark.pyspark.python")) is not None:
        os.environ["PYSPARK_PYTHON"] = executors  # a setting overrides the environment, as for spark-submit
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONHASHSEED"] = "0"  # pyspark gives it to all executors: hash() is the same in all tasks
    # Only for the short-lived JVM that composes the command line of Spark's own: it ends 0.1 s sooner.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    conf = SparkConf().setAppName(f"headrace-{config.job}")
    if logs.in_json():
        conf.setExecutorEnv(logs.FORMAT, "json")
    if not is_submitted:
        java = require_java(config.home)
        os.environ["JAVA_HOME"] = str(java)
        archive = ClassArchive(config.home, java, spark_home())
        java_options = profile.spark.get("spark.driver.extraJavaOptions", "")
        if archived := archive.submit_options(os.environ.get("SPARK_SUBMIT_OPTS", ""), java_options):
            os.environ["SPARK_SUBMIT_OPTS"] = archived
        conf.setMaster(_with_retries(profile.master)).setAll([*_settings(profile).items()])
    try:
        started = SparkContext.getOrCreate(conf)
    except (Py4JError, PySparkException, OSError) as error:
        raise ClusterError(
            f"Spark cannot be started with master '{profile.master}' of {profile.file}: {error}\nNothing was done. See what Java "
            "says above; 'headrace doctor' looks at Java, jars and pyspark. Then run again."
        ) from error
    finally:
        if options is not None:
            os.environ.pop("PYSPARK_SUBMIT_ARGS", None)  # the JVM has them, and later child processes need none
    atexit.register(_wait_for_jvm)
    watch()  # Spark has installed a handler of its own
    started.setLogLevel("ERROR")
    if not is_submitted:  # after spark-submit, --py-files has shipped them
        for file in profile.py_files:
            started.addPyFile(file)
    return started


_LONGEST_END = 5.0


def _wait_for_jvm() -> None:
    """Wait until the JVM has ended, which it does when its standard input ends. Otherwise it would outlive this process by half a second."""
    context: Any = SparkContext._active_spark_context  # noqa: SLF001  pyspark offers no other way
    if (server := getattr(context, "_accumulatorServer", None)) is not None:
        server.handle_error = lambda *_: None  # it would print a traceback, since the JVM closes its connection
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is not None and process.stdin is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            process.stdin.close()
            process.wait(_LONGEST_END)


def _is_submitted() -> bool:
    """Return whether spark-submit has started this driver, and so set master, settings and jars."""
    return not {"SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT"}.isdisjoint(os.environ)


def _settings(profile: ClusterConfig) -> dict[str, str]:
    """Return the profile's settings above Headrace's own, and those that spark-submit takes as options."""
    shipped = {
        "spark.jars": _present(profile),
        "spark.files": profile.files,
        "spark.archives": profile.archives,
    }
    own = daemon_settings(profile.master, profile.py_files)
    return {**own, **profile.spark, **{key: ",".join(paths) for key, paths in shipped.items() if paths}}


def _present(profile: ClusterConfig) -> tuple[str, ...]:
    jars = profile.jar_files
    missing = absent_jars(jars)
    if missing:
        listed = ", ".join(missing)
        raise ConfigError(f"{profile.file}: jars: there is no {listed}. Spark was not started. {how_to_get(missing)}")
    return jars


def _with_retries(master: str) -> str:
    """Return a local master with four tries for each task (`local[2]` as `local[2,4]`): a killed Python worker must not fail the run."""
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},4]"
    return master
