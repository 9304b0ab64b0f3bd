"""References to the environment that stay in a profile's settings until they are expanded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.config import expand_settings, load_cluster, load_job
from headrace.errors import ConfigError

PROFILE = """\
master: "local[${CORES:-2}]"
parallelism: 2
spark:
  spark.hadoop.fs.s3a.secret.key: "${STORE_KEY}"
  spark.app.name: ${APP:-none}
  spark.ui.enabled: false
storage:
  AWS_SECRET_ACCESS_KEY: "${STORE_KEY}"
"""


@pytest.fixture
def profile(home, monkeypatch):
    (home / "conf/clusters/local.yaml").write_text(PROFILE)
    monkeypatch.setenv("STORE_KEY", "hush")
    return home


def test_kept_references_hold_no_secret(profile):
    kept = load_job("demo", keep_references=True).profile
    assert kept.spark["spark.hadoop.fs.s3a.secret.key"] == "${STORE_KEY}"
    assert kept.storage == {"AWS_SECRET_ACCESS_KEY": "${STORE_KEY}"}
    assert (kept.spark["spark.ui.enabled"], kept.master) == ("false", "local[2]")


def test_expanded_settings_equal_a_plain_load(profile, monkeypatch):
    monkeypatch.setenv("APP", "board")
    kept = load_cluster("local", keep_references=True)
    environment = {"STORE_KEY": "hush", "APP": "board"}
    assert expand_settings(kept.spark, environment) == load_cluster("local").spark


def test_unset_variable_fails_only_when_expanded(profile, monkeypatch):
    monkeypatch.delenv("STORE_KEY")
    kept = load_cluster("local", keep_references=True)
    with pytest.raises(ConfigError, match=r"spark.hadoop.fs.s3a.secret.key: environment variable STORE_KEY is not set"):
        expand_settings(kept.spark, {})


def test_malformed_kept_reference_is_refused(home):
    (home / "conf/clusters/local.yaml").write_text("master: m\nparallelism: 1\nspark: {spark.a: '${NOT-THIS}'}\n")
    with pytest.raises(ConfigError, match=r"local.yaml:3: spark.spark.a: '\$\{NOT-THIS\}' is not a reference"):
        load_cluster("local", keep_references=True)


def test_configuration_imports_no_heavy_package():
    code = (
        "import sys, headrace.config; "
        "print(sorted({'pyarrow', 'croniter', 'pyspark', 'delta', 'deltalake', 'duckdb', 'airflow'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
