"""Rules about a job that span several keys, or need more than a type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from posixpath import normpath, realpath
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from headrace.config._cron import check_cron
from headrace.config._document import raise_problems
from headrace.config._job import JobConfig
from headrace.config._table_versions import parse_start, parse_versions

_SHORTEST_LEASE = timedelta(seconds=5)
_ANY_MOMENT = datetime(2013, 1, 31, tzinfo=UTC)
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Schemes that name the same places as others."""

Problem = tuple[str, str]
"""A dotted key, and what is wrong with it."""


def check_job(config: JobConfig) -> None:
    """Raise `ConfigError` that lists every broken rule with its line."""
    raise_problems(config.file, job_problems(config))


def job_problems(config: JobConfig) -> list[str]:
    """Return every broken rule with its line, as far as no pipeline is needed to see it."""
    return [f"{config.where(key)}: {text}" for check in _CHECKS for key, text in check(config)]


def _file_name(config: JobConfig) -> Iterator[Problem]:
    if config.job != config.file.stem:
        yield "job", f"'{config.job}' must be the file's own name, '{config.file.stem}'"


def _bindings(config: JobConfig) -> Iterator[Problem]:
    if not config.sources:
        yield "sources", "a job needs a source"
    if not config.sinks:
        yield "sinks", "a job needs a sink"
    sources = {normalised(source.path): name for name, source in config.sources.items()}
    state = normalised(config.job_folder)
    seen: dict[str, str] = {}
    for name, sink in config.sinks.items():
        key, path = f"sinks.{name}.path", normalised(sink.path)
        if path in seen:
            yield key, f"sink '{seen[path]}' writes to the same table: give each a path of its own"
        if path in sources:
            yield (
                key,
                f"source '{sources[path]}' reads this folder: a job must not read what it writes; give another path",
            )
        if f"{path}/".startswith(f"{state}/"):
            yield key, f"this is in the folder of the job's state, {state}: give another path"
        elif f"{state}/".startswith(f"{path}/"):
            yield (
                key,
                f"the job's state, {state}, is in this folder: a VACUUM of the table would delete it; give another path",
            )
        seen[path] = name


def normalised(location: str) -> str:
    """Return a path or a URI, as loaded, in the one form that it shares with others of the same place.

    Symbolic links are followed. `%20` counts as a space also in a path, as it does for deltalake.
    """
    scheme, mark, path = location.partition("://")
    if not mark:
        return unquote("/" + realpath(location).lstrip("/"))
    return _SCHEMES.get(scheme, scheme) + mark + normpath(unquote(path))


def _parallelism(config: JobConfig) -> Iterator[Problem]:
    if (config.parallelism or 1) > config.max_parallelism:
        limit = f"max_parallelism ({config.max_parallelism})"
        yield "parallelism", f"{config.parallelism} tasks cannot share {limit} key groups"


def _schedule(config: JobConfig) -> Iterator[Problem]:
    if config.schedule is None:
        return
    try:
        check_cron(config.schedule.cron)
    except ValueError as error:
        yield "schedule.cron", str(error)
    try:
        ZoneInfo(config.schedule.timezone)
    except (KeyError, ValueError, OSError):
        yield "schedule.timezone", f"there is no time zone '{config.schedule.timezone}'"


def _intervals(config: JobConfig) -> Iterator[Problem]:
    for name, source in config.sources.items():
        if config.mode == "interval" and source.format == "delta":
            yield (
                f"sources.{name}",
                "a Delta table has no intervals: versions are taken in as they come; use mode 'caught_up'",
            )
        elif config.mode == "interval" and source.interval is None:
            yield f"sources.{name}", "mode 'interval' needs 'interval', the pattern of the file names"
        if source.interval is not None and "%" not in source.interval:
            yield f"sources.{name}.interval", f"'{source.interval}' has no date field such as %Y-%m-%d"
        elif source.interval is not None and (problem := _pattern_problem(source.interval)) is not None:
            yield f"sources.{name}.interval", problem
        if source.complete_intervals and source.interval is None:
            yield (
                f"sources.{name}.complete_intervals",
                "needs 'interval', the pattern of the file names: it tells where an interval ends",
            )


def _pattern_problem(pattern: str) -> str | None:
    """Return why no file name can fit a pattern; None where one can."""
    try:
        datetime.strptime(_ANY_MOMENT.strftime(pattern), pattern)  # noqa: DTZ007 - nobody uses the moment
    except (ValueError, re.error) as error:
        return f"'{pattern}' is no pattern that a date can be read by ({error}); write one such as %Y-%m-%d"
    return None


def _tables(config: JobConfig) -> Iterator[Problem]:
    """Keys of a source that its format does not have, and texts that name no versions."""
    for name, source in config.sources.items():
        wrong = _FOLDER_KEYS if source.format == "delta" else _TABLE_KEYS
        for key in wrong:
            if getattr(source, key):
                has = (
                    "a Delta table has no file names that give intervals"
                    if source.format == "delta"
                    else "a folder has no versions"
                )
                yield f"sources.{name}.{key}", f"the format {source.format} does not have it: {has}"
        for key, parse in (("start", parse_start), ("skip_versions", parse_versions)):
            text = getattr(source, key)
            if text is not None:
                try:
                    parse(text)
                except ValueError as error:
                    yield f"sources.{name}.{key}", str(error)


_FOLDER_KEYS = ("interval", "complete_intervals")
_TABLE_KEYS = ("change_feed", "start", "skip_versions")


def _limits(config: JobConfig) -> Iterator[Problem]:
    if config.run.budget <= timedelta(0):
        yield "run.budget", "a run needs time: give at least 1s"
    if config.run.lease < _SHORTEST_LEASE:
        yield "run.lease", "shorter than 5s, a run would lose its job while it commits"
    for name, override in config.async_io.items():
        if override.timeout is not None and override.timeout <= timedelta(0):
            yield f"async_io.{name}.timeout", "a call needs time: give at least 1ms"


def _services(config: JobConfig) -> Iterator[Problem]:
    for name, service in config.services.items():
        key = f"services.{name}.url"
        try:
            parts = urlsplit(service.url)
        except ValueError:  # its message repeats part of the URL
            yield key, "this is no URL: expected one such as http://127.0.0.1:8013"
            continue
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            # The URL may hold a password by mistake, so it is not repeated here.
            yield key, "expected a URL such as http://127.0.0.1:8013"
        if parts.username or parts.password:
            yield key, "a URL must not hold a user or a password; give them in the environment"


def _deadline(config: JobConfig) -> Iterator[Problem]:
    if config.airflow.on_deadline is not None and config.airflow.deadline is None:
        yield "airflow.on_deadline", "it is never called without `airflow.deadline`: give one, or remove this"


_CHECKS: tuple[Callable[[JobConfig], Iterator[Problem]], ...] = (
    _file_name,
    _bindings,
    _parallelism,
    _schedule,
    _intervals,
    _tables,
    _limits,
    _services,
    _deadline,
)
