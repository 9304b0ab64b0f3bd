"""The Java of a session, in a project without its own environment."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from headrace.config import load_job
from headrace.errors import ClusterError, ConfigError
from headrace.provision.class_archive import ClassArchive
from headrace.spark import session as session_module
from tests.jobs.home import Home


class Started(Exception):  # noqa: N818
    """Spark would have been started, with the configuration that is the argument."""


def start(conf):
    raise Started(conf)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(SparkContext, "getOrCreate", start)
    monkeypatch.setattr(session_module, "absent_jars", lambda _: [])
    for name in (
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "SPARK_LOCAL_IP",
        "SPARK_LAUNCHER_OPTS",
        "JAVA_HOME",
        "SPARK_SUBMIT_OPTS",
    ):
        monkeypatch.setenv(name, "")  # monkeypatch puts back what the session changes
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")
    Home(tmp_path)
    return load_job("purchases", tmp_path)


def test_session_uses_the_projects_java(config):
    java = config.home / "var" / "jdk"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").write_text("")
    (java / "release").write_text('JAVA_VERSION="25.0.1"\n')
    with pytest.raises(Started):
        session_module.context(config)
    assert os.environ["JAVA_HOME"] == str(java)


def test_executors_python_of_the_profile_comes_first(config, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    monkeypatch.setattr(session_module, "require_java", lambda config_home: config_home)
    profile = replace(config.profile, spark={"spark.pyspark.python": "./environment/bin/python"})
    with pytest.raises(Started):
        session_module.context(replace(config, profile=profile))
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_session_starts_java_with_archived_classes(config, monkeypatch):
    monkeypatch.setattr(session_module, "require_java", lambda _: config.home)
    monkeypatch.setattr(ClassArchive, "options", lambda _: "-XX:SharedArchiveFile=classes.jsa")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    with pytest.raises(Started):
        session_module.context(config)
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-XX:SharedArchiveFile=classes.jsa -Dmine=1"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"master": "local[2]"}, "headrace.spark.worker_daemon"),
        ({"master": "local[2]", "spark": {"spark.python.daemon.module": "mine"}}, "mine"),
        ({"master": "local[2]", "py_files": ("headrace.zip",)}, None),  # shipped behind the daemon's start
        ({"master": "spark://host:7077"}, None),  # Headrace need not be installed there
        ({"master": "local-cluster[2,1,1024]"}, None),
    ],
)
def test_local_workers_are_forked_by_headrace(config, monkeypatch, changes, expected):
    monkeypatch.setattr(session_module, "require_java", lambda _: config.home)
    profile = replace(config.profile, **{"spark": {}} | changes)
    with pytest.raises(Started) as started:
        session_module.context(replace(config, profile=profile))
    assert started.value.args[0].get("spark.python.daemon.module") == expected


def test_own_options_of_sparks_launcher_stay(config, monkeypatch):
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "-Xss4m")
    monkeypatch.setattr(session_module, "require_java", lambda config_home: config_home)
    with pytest.raises(Started):
        session_module.context(config)
    assert os.environ["SPARK_LAUNCHER_OPTS"] == "-Xss4m"


def test_session_without_java_is_refused(config):
    with pytest.raises(ConfigError, match="no Java 17 or newer.*Spark was not started. Run: headrace setup"):
        session_module.context(config)


def test_failed_start_of_spark_is_cluster_error(config, monkeypatch):
    def refuse(_):
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")

    monkeypatch.setattr(SparkContext, "getOrCreate", refuse)
    monkeypatch.setattr(session_module, "require_java", lambda home: home)
    with pytest.raises(
        ClusterError, match=r"(?s)Spark cannot be started with master 'local.*'headrace doctor'"
    ) as caught:
        session_module.context(config)
    assert caught.value.exit_code == 13
