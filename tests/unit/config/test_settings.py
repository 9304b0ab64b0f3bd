"""Values of a branch that replace values of its job's file."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from headrace.config import load_job, with_settings
from headrace.errors import ConfigError


def refused(settings, *, containing):
    with pytest.raises(ConfigError, match=re.escape(containing)):
        with_settings(load_job("demo"), settings)


def test_settings_replace_values_of_the_file(home, job_file):
    job_file("run: {budget: 1h, grace: 1m}\n")
    settings = {"run.budget": "5m", "sources.events.path": "data/corrected", "services.geo.url": "http://localhost:1"}
    config = with_settings(load_job("demo"), settings)
    assert (config.run.budget, config.run.grace) == (timedelta(minutes=5), timedelta(minutes=1))
    assert config.sources["events"].path == str(home / "data/corrected")
    assert config.services["geo"].url == "http://localhost:1"
    assert config.settings == settings
    assert with_settings(load_job("demo"), {}) == load_job("demo")


def test_names_with_dots_can_be_set(home, job_file):
    job_file(
        "sources: {events: {format: kafka, servers: 'a:1', topic: t}}\n",
        replace=("sources:\n  events:\n    path: data/events\n", ""),
    )
    config = with_settings(
        load_job("demo"),
        {
            "execution.upsert-materialize.adaptive.threshold.high": "70",
            "operators.board.execution.async-state.event-order.watermark": "strictly-ordered",
            "sources.events.options.kafka.client.id": "branch",
        },
    )
    assert config.execution.upsert_materialize.threshold_high == 70
    assert config.operators["board"].execution.async_state.event_order_watermark is not None
    assert config.sources["events"].options == {"kafka.client.id": "branch"}


def test_null_removes_a_value(home, job_file):
    job_file("parallelism: 2\n")
    assert with_settings(load_job("demo"), {"parallelism": "null"}).parallelism is None
    assert with_settings(load_job("demo"), {"parallelism": ""}).parallelism is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("run.budgt", "5m", "--set run.budgt: unknown key; did you mean 'budget'? (allowed: budget,"),
        ("runn.budget", "5m", "--set runn.budget: runn: unknown key; did you mean 'run'?"),
        ("run.budget", "soon", "--set run.budget: expected a duration"),
        ("run.budget.more", "5m", "--set run.budget.more: run.budget: expected"),
        ("run.budget", "[5m", "--set run.budget: '[5m' is not valid YAML"),
        ("run.retries", "-1", "--set run.retries: '-1' is out of range"),
        ("pipeline", "no pipeline", "--set pipeline: 'no pipeline' is not package.module:variable"),
        (
            "sources.events.interval",
            "daily",
            "--set sources.events.interval: 'daily' gives no intervals: it has no date field",
        ),
        ("services.geo.password", "x", "--set services.geo.password"),
        ("run", "[" * 200, "nested more than 100 deep"),
        ("run..budget", "5m", "--set run..budget"),
        ("", "5m", "unknown key"),
    ],
)
def test_bad_settings_are_refused_as_in_files(home, key, value, message):
    refused({key: value}, containing=message)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("job", "a branch cannot set job: a branch is part of its job"),
        ("schedule.cron", "a branch cannot set schedule"),
        ("max_parallelism", "a branch has the key groups of the state that it begins with"),
        ("state.root", "a branch is a folder in that of its job"),
        ("state", "a branch cannot set state.root"),
        ("sinks.board.path", "sinks of a branch are tables in its folder"),
        ("cluster", "give it to each run, as --cluster"),
    ],
)
def test_keys_of_the_job_alone_are_refused(home, key, reason):
    refused({key: "1"}, containing=reason)


def test_messages_name_the_setting_not_the_file(home):
    config = with_settings(load_job("demo"), {"run.budget": "5m"})
    assert config.where("run.budget") == "--set run.budget"
    assert config.on_branch("other").where("run.budget") == "branch 'other', --set run.budget"
    assert config.where("pipeline").endswith("demo.yaml:2: pipeline")
