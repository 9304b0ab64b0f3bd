"""The configuration loaded from a job file: defaults, paths, durations, references to the environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from headrace.config import JobFile, home_folder, list_clusters, list_jobs, load_cluster, load_job
from headrace.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[3]


def test_short_file_gets_the_documented_defaults(home):
    config = load_job("demo")
    assert (config.max_parallelism, config.state.backend, config.mode) == (128, "rocksdb", "caught_up")
    assert config.run.budget == timedelta(minutes=30)
    assert config.sources["events"].on_bad_row == "quarantine"


def test_relative_paths_start_at_home_and_uris_stay(home):
    config = load_job("demo")
    assert config.sources["events"].path == str(home / "data/events")
    assert config.sinks["board"].path == "s3://lake/board"
    assert config.job_folder == str(home / "var/state/demo")


def test_tasks_default_to_the_profile(home, job_file):
    assert load_job("demo").tasks == 2
    job_file("parallelism: 5\n")
    assert load_job("demo").tasks == 5


def test_durations_may_be_texts_or_seconds(home, job_file):
    job_file("run: {budget: 1h30m, grace: 90, lease: 2m, retry_delay: 2d}\n")
    run = load_job("demo").run
    assert (run.budget, run.grace) == (timedelta(minutes=90), timedelta(seconds=90))


def test_environment_variables_set_texts_and_numbers(home, job_file, monkeypatch):
    monkeypatch.setenv("GROUPS", "64")
    monkeypatch.delenv("WEATHER_URL", raising=False)
    job_file('max_parallelism: ${GROUPS}\nservices: {weather: {url: "${WEATHER_URL:-http://localhost:1}"}}\n')
    config = load_job("demo")
    assert config.max_parallelism == 64
    assert config.services["weather"].health_url() == "http://localhost:1/health"


def test_default_is_used_for_an_empty_variable(home, job_file, monkeypatch):
    monkeypatch.setenv("OWNER", "")
    job_file("owner: ${OWNER:-night shift}\n")
    assert load_job("demo").owner == "night shift"


def test_schedule_starts_in_its_time_zone(home, job_file):
    job_file('schedule: {cron: "0 5 * * *", start: 2026-01-01, timezone: Europe/Berlin}\n')
    schedule = load_job("demo").schedule
    assert schedule is not None
    assert schedule.starts_at().astimezone(UTC) == datetime(2025, 12, 31, 23, tzinfo=UTC)


def test_another_cluster_may_be_asked_for(home):
    (home / "conf/clusters/big.yaml").write_text("master: spark://x:7077\nparallelism: 16\n")
    config = load_job("demo", cluster="big")
    assert (config.cluster, config.tasks) == ("big", 16)


def test_settings_of_spark_become_text(home):
    text = "master: m\nparallelism: 1\nspark: {spark.ui.enabled: false, spark.sql.shuffle.partitions: 2}\n"
    (home / "conf/clusters/local.yaml").write_text(text)
    assert load_cluster("local").spark == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


def test_profile_never_shows_its_secrets(home, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    text = 'master: m\nparallelism: 1\nstorage: {AWS_SECRET_ACCESS_KEY: "${AWS_SECRET_ACCESS_KEY}"}\n'
    (home / "conf/clusters/local.yaml").write_text(text)
    config = load_job("demo")
    assert config.credentials == {"AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in f"{config!r}{config.shown()}"


def test_configurations_cannot_be_changed(home):
    with pytest.raises(AttributeError):
        load_job("demo").mode = "interval"


def test_unknown_job_error_names_known_ones(home):
    with pytest.raises(ConfigError, match=r"unknown job 'demon'; did you mean 'demo'\? \(known: demo\)"):
        load_job("demon")


def test_job_name_cannot_leave_the_folder(home):
    with pytest.raises(ConfigError, match="not a valid job name"):
        load_job("../clusters/local")


def test_missing_named_home_is_refused(home, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(home / "gone"))
    with pytest.raises(ConfigError, match="HEADRACE_HOME is '.*/gone', and that folder does not exist"):
        list_jobs()


def test_named_home_without_jobs_folder_is_refused(home, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(home / "conf" / "clusters"))
    with pytest.raises(ConfigError, match="HEADRACE_HOME is '.*', and that folder has no folder conf/jobs"):
        list_jobs()


def test_nearest_folder_with_jobs_is_home(home, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME")
    below = home / "var" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert home_folder() == home
    (below / "conf" / "jobs").mkdir(parents=True)
    assert home_folder() == below


def test_missing_home_names_the_ways_out(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"neither {tmp_path} nor .* \(cd\), or set HEADRACE_HOME .*headrace new"):
        home_folder()


def test_projects_own_files_load(monkeypatch):
    for name in ("SPARK_MASTER_URL", "WEATHER_URL", "HEADRACE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "flights" in list_jobs(REPOSITORY)
    config = load_job("flights", REPOSITORY)
    assert config.sinks.keys() == {"flight_board", "overdue_alerts", "hourly_departures"}
    for cluster in {"local", "standalone"} & set(list_clusters(REPOSITORY)):
        assert load_cluster(cluster, REPOSITORY).parallelism >= 1


def test_projects_own_job_spells_out_every_section():
    text = (REPOSITORY / "conf/jobs/flights.yaml").read_text()
    missing = [field for field in JobFile.__struct_fields__ if f"\n{field}:" not in text]
    assert missing == []
    assert msgspec.structs.fields(JobFile)[0].name == "job"
