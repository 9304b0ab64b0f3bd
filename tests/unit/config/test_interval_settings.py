"""Settings of a source that give its files intervals: with the schedule, and with each other."""

from __future__ import annotations

import pytest

from headrace.config import load_job
from headrace.errors import ConfigError
from tests.unit.config.conftest import JOB

NEW_YORK = "schedule: {cron: '@daily', start: 2026-01-01, timezone: America/New_York}\n"


@pytest.fixture
def load(home):
    def load(source, rest=""):
        text = JOB.replace("path: data/events", "path: data/events\n    " + "\n    ".join(source)) + rest
        (home / "conf/jobs/demo.yaml").write_text(text)
        return load_job("demo")

    return load


def scheduled(cron, timezone="UTC"):
    return f"mode: interval\nschedule: {{cron: '{cron}', start: 2026-01-01, timezone: {timezone}}}\n"


@pytest.mark.parametrize(
    ("source", "rest", "words"),
    [
        (["interval: '%m-%d'"], "", ["demo.yaml:6: sources.events.interval", "add %Y"]),
        (["interval: '%Y-%V'"], "", ["%G-W%V"]),
        (
            ["interval: '%Y-%m-%d'"],
            NEW_YORK,
            [":6: sources.events.interval", "timezone: America/New_York", "timezone: UTC"],
        ),
        (["interval: '%Y-%m-%d'", "timezone: Mars"], "", [":7: sources.events.timezone", "no time zone 'Mars'"]),
        (["timezone: UTC"], "", ["sources.events.timezone", "needs 'interval'"]),
        (["interval: '%Y-%m-%dT%H'", "timezone: Europe/Berlin"], "", ["go back once a year", "add %z"]),
        (["interval: '%Y-%W'", "complete_intervals: true"], "", ["complete_intervals", "%G-W%V"]),
        (["format: delta", "timezone: UTC"], "", ["sources.events.timezone", "delta does not have it"]),
    ],
)
def test_unclear_intervals_are_refused(load, source, rest, words):
    with pytest.raises(ConfigError) as error:
        load(source, rest)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("timezone", ["America/New_York", "UTC"])
def test_zone_of_file_names_is_given(load, timezone):
    config = load(["interval: '%Y-%m-%d'", f"timezone: {timezone}"], NEW_YORK)
    assert config.sources["events"].pattern.zone.key == timezone


def test_schedule_in_utc_asks_for_no_zone(load):
    config = load(["interval: '%Y-%m-%d'"], NEW_YORK.replace("America/New_York", "Etc/UTC"))
    assert config.sources["events"].pattern.zone.key == "UTC"


@pytest.mark.parametrize(
    ("pattern", "cron"),
    [
        ("%Y-%m-%dT%H", "*/30 * * * *"),
        ("%Y-%m-%d", "@hourly"),
        ("%Y-%m-%d", "0 */6 * * *"),
        ("%Y-%m", "@daily"),
        ("%Y-%m", "0 0 * * 1"),
        ("%Y", "0 5 1 * *"),
        ("%G-W%V", "0 0 * * 1-5"),
    ],
)
def test_schedule_finer_than_the_files_is_refused(load, pattern, cron):
    with pytest.raises(ConfigError, match=r"schedule.cron: no file can begin between .* mode 'caught_up'"):
        load([f"interval: '{pattern}'"], scheduled(cron))
    load([f"interval: '{pattern}'"], scheduled(cron).replace("interval", "caught_up"))


@pytest.mark.parametrize(
    ("pattern", "cron"),
    [
        ("%Y-%m-%dT%H%M", "*/30 * * * *"),
        ("%Y-%m-%dT%H", "@hourly"),
        ("%Y-%m-%d", "0 6 * * *"),
        ("%Y-%m-%d", "0 0 * * 1-5"),
        ("%Y-%m-%d", "0 0 1,15 * *"),
        ("%G-W%V", "0 0 1,15 * *"),
        ("%G-W%V", "0 0 * * 1"),
        ("%Y-%m", "@monthly"),
        ("%Y-%m", "0 0 15 * *"),
    ],
)
def test_schedule_like_the_files_is_taken(load, pattern, cron):
    load([f"interval: '{pattern}'"], scheduled(cron))
