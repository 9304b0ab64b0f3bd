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
        (["format: delta", "timezone: UTC"], "", ["sources.events.timezone", "needs 'interval'"]),
        (["format: delta", "interval: '%Y'"], "", ["sources.events.interval", "Delta table has no intervals by name"]),
        (["format: delta", "interval: {by: name}"], "", ["interval.by", "write {by: committed} or {by: partition} or"]),
        (
            ["interval: {by: committed}"],
            "",
            ["interval.by", "a folder of files has no intervals by committed: write {by: name}"],
        ),
        (["interval: {by: name}"], "", ["interval.pattern", "this key is missing"]),
        (["format: delta", "interval: {by: partition}"], "", ["interval.column", "this key is missing"]),
        (
            ["format: delta", "interval: {by: committed, column: day}"],
            "",
            ["interval.column", "only intervals by partition"],
        ),
        (["format: delta", "interval: {by: committed, pattern: '%Y'}"], "", ["interval.pattern", "need no pattern"]),
        (["format: delta", "interval: {by: partition, column: day, pattern: '%d'}"], "", ["interval", "%d"]),
        (["format: delta", "interval: {by: column, lateness: 2d}"], "", ["interval.column", "this key is missing"]),
        (["format: delta", "interval: {by: column, column: day}"], "", ["interval.lateness", "this key is missing"]),
        (
            ["format: delta", "interval: {by: committed, lateness: 2d}"],
            "",
            ["interval.lateness", "only intervals by column"],
        ),
        (
            ["format: delta", "interval: {by: column, column: a, lateness: 2d, pattern: '%Y-%m-%dT%H%M%S'}"],
            "",
            ["interval.pattern", "a second is too short"],
        ),
        (
            ["format: delta", "interval: {by: column, column: a, lateness: 90d, pattern: '%Y-%m-%dT%H'}"],
            "",
            ["interval.lateness", "more than 1,000 periods of a hour"],
        ),
        (
            ["format: delta", "interval: {by: column, column: a, lateness: 2d}", "on_bad_file: quarantine"],
            "",
            ["on_bad_file", "write fail"],
        ),
        (["format: delta", "interval: {by: sometimes}"], "", ["interval.by", "sometimes"]),
        (["format: delta", "interval: {by: committed, zone: UTC}"], "", ["interval.zone", "unknown key"]),
        (
            ["format: delta", "interval: {by: committed}", "timezone: UTC"],
            "",
            ["sources.events.timezone", "in no zone"],
        ),
        (
            ["format: delta", "interval: {by: committed}", "start: snapshot"],
            "",
            ["sources.events.start", "without their times"],
        ),
        (
            ["format: delta", "interval: {by: committed}", "start: latest"],
            "",
            ["sources.events.start", "the first interval says where a job begins"],
        ),
        (
            ["format: delta", "interval: {by: partition, column: day}", "start: latest"],
            "",
            ["sources.events.start", "the first interval says where a job begins"],
        ),
        (
            ["format: delta", "interval: {by: partition, column: day}", "change_feed: true"],
            "",
            ["change_feed", "by: committed"],
        ),
        (
            ["format: delta", "interval: {by: partition, column: day}"],
            NEW_YORK,
            ["in the partitions by day", "timezone: UTC"],
        ),
        (
            ["format: kafka", "servers: b:9092", "topic: t", "interval: {by: partition, column: day}"],
            "",
            ["sources.events.interval.by", "a topic has no intervals by partition: write {by: committed}"],
        ),
        (
            ["format: kafka", "servers: b:9092", "topic: t", "interval: '%Y-%m-%d'"],
            "",
            ["sources.events.interval", "a topic has no intervals by name: write {by: committed}"],
        ),
        (
            ["format: kafka", "servers: b:9092", "topic: t", "interval: {by: committed}", "start: latest"],
            "",
            ["sources.events.start", "the first interval says where a job begins"],
        ),
        (
            ["format: kafka", "servers: b:9092", "topic: t", "interval: {by: committed, idle_after: soon}"],
            "",
            ["sources.events.interval.idle_after", "soon"],
        ),
        (
            ["format: delta", "interval: {by: committed, idle_after: 5m}"],
            "",
            ["sources.events.interval.idle_after", "only partitions of a topic"],
        ),
    ],
)
def test_unclear_intervals_are_refused(load, source, rest, words):
    with pytest.raises(ConfigError) as error:
        load(source, rest)
    assert [word for word in words if word not in str(error.value)] == []


def test_table_without_intervals_has_no_interval_runs(load):
    with pytest.raises(
        ConfigError, match="needs 'interval', which says what the intervals of a Delta table are by: committed"
    ):
        load(["format: delta"], scheduled("0 0 * * *"))


@pytest.mark.parametrize("cron", ["0 * * * *", "*/7 * * * *", "0 0 * * *"])
def test_commit_times_fit_any_schedule(load, cron):
    config = load(["format: delta", "interval: {by: committed}"], scheduled(cron, "America/New_York"))
    assert (config.sources["events"].intervals.by, config.sources["events"].pattern) == ("committed", None)


def test_partitions_of_days_need_a_schedule_of_days(load):
    with pytest.raises(ConfigError, match="no file can begin between"):
        load(["format: delta", "interval: {by: partition, column: day}"], scheduled("0 * * * *"))


@pytest.mark.parametrize("written", ["'%Y-%m-%d'", "{by: name, pattern: '%Y-%m-%d'}", "{pattern: '%Y-%m-%d'}"])
def test_pattern_has_two_spellings(load, written):
    source = load([f"interval: {written}"]).sources["events"]
    assert (source.intervals.by, source.pattern_text, source.pattern.text) == ("name", "%Y-%m-%d", "%Y-%m-%d")


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
