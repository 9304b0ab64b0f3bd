"""Limits of services, and the options of an async operator."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace.config import load_job
from headrace.errors import ConfigError


@pytest.mark.parametrize(("written", "means"), [("50", 50.0), ("0.5", 0.5), ("null", None)])
def test_rate_is_any_number_above_zero(home, job_file, written, means):
    job_file(f"services: {{weather: {{url: 'http://x', rate: {written}, concurrency: 3}}}}\n")
    service = load_job("demo").services["weather"]
    assert (service.rate, service.concurrency) == (means, 3)


@pytest.mark.parametrize("written", ["0", "-1", "many"])
def test_any_other_rate_is_refused_with_its_place(home, job_file, written):
    job_file(f"services: {{weather: {{url: 'http://x', rate: {written}}}}}\n")
    with pytest.raises(ConfigError, match=r"services\.weather\.rate"):
        load_job("demo")


def test_park_after_is_a_duration(home, job_file):
    job_file("async_io: {ask: {park_after: 10s}}\n")
    assert load_job("demo").async_io["ask"].park_after == timedelta(seconds=10)


@pytest.mark.parametrize("url", ["http://x/?token=hush", "http://x?token=hush", "http://x/a?b=1&token=hush#hush"])
def test_query_is_not_shown(job_file, url):
    job_file(f"services: {{weather: {{url: '{url}', health: '/health?key=hush'}}}}\n")
    config = load_job("demo")
    assert "hush" not in f"{config.shown()}{config!r}"
    assert "hush" in config.services["weather"].health_url()


def test_health_path_comes_before_the_query(job_file):
    job_file("services: {weather: {url: 'http://x/a/?token=1', health: '/health?key=2'}}\n")
    assert load_job("demo").services["weather"].health_url() == "http://x/a/health?token=1&key=2"
