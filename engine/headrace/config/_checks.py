"""Rules for a job that span several keys, or need more than a type."""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from posixpath import normpath, realpath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

import msgspec

from headrace.config._alerts import parse_condition
from headrace.config._document import raise_problems
from headrace.config._formats import foreign_keys
from headrace.config._interval_pattern import IntervalPattern, interval_pattern
from headrace.config._job import JobConfig, JobFile, ScheduleConfig
from headrace.config._read import read_struct
from headrace.config._scalars import Place, is_only_a_reference
from headrace.config._sections import IntervalOptions
from headrace.config._sink import SINK_FORMATS, SinkConfig
from headrace.config._source import SOURCE_FORMATS, SourceConfig, SourceFormat
from headrace.config._values import (
    Unit,
    check_cron,
    intervals_of_cron,
    longest_common_period,
    parse_offsets,
    parse_quarantine_limit,
    parse_start,
    parse_versions,
)
from headrace.errors import ConfigError
from headrace.names import counted

_SHORTEST_LEASE = timedelta(seconds=5)
_SCHEMES = {"s3a": "s3"}
"""Schemes that name the same places as others."""

Problem = tuple[str, str]
"""A dotted key, and the problem with it."""


def check_job(config: JobConfig) -> None:
    """Raise `ConfigError` that lists every broken rule with its line."""
    raise_problems(config.file, job_problems(config))


def job_problems(config: JobConfig) -> list[str]:
    """Return every broken rule that can be found without a pipeline, with its line."""
    return [f"{config.where(key)}: {text}" for check in _CHECKS for key, text in check(config)]


def _file_name(config: JobConfig) -> Iterator[Problem]:
    if config.job != config.file.stem:
        yield "job", f"'{config.job}' must be the file's own name, '{config.file.stem}'"


def _stored_name(config: JobConfig) -> Iterator[Problem]:
    """Yield the problem of a job that is stored under the name of another one: both would be one job with two pipelines."""
    name = config.stored_name
    file = config.file.with_name(f"{name}.yaml")
    if name == config.job or not file.is_file():
        return
    try:
        other, _ = read_struct(file, JobFile, Place(config.home, os.environ))
    except ConfigError:
        return  # it says so itself when it is loaded
    if (other.state.name or other.job) == name and normalised(other.state.root) == normalised(config.state.root):
        yield (
            "state.name",
            f"job '{name}' has its state in {config.itself.job_folder} ({file}): give one of both another state.name or state.root",
        )


def _bindings(config: JobConfig) -> Iterator[Problem]:
    if not config.sources:
        yield "sources", "a job needs a source"
    if not config.sinks:
        yield "sinks", "a job needs a sink"
    places = [*_places(config)]
    for number, place in enumerate(places):
        problem = next(filter(None, map(place.problem_beside, places[:number])), None)
        if problem is not None:
            yield place.key, problem


def _nested_folders(config: JobConfig) -> Iterator[Problem]:
    """Yield the sources that would read the files of another source, in a subfolder, as well."""
    folders = {name: source for name, source in config.sources.items() if source.kind.is_folder and source.path}
    paths = {name: normalised(source.path) for name, source in folders.items()}
    for (name, source), (inner, other) in itertools.permutations(folders.items(), 2):
        below = paths[inner].removeprefix(f"{paths[name].rstrip('/')}/")
        is_kept_apart = source.files is not None or any(
            fnmatchcase(part, ignored) for part in (below, *below.split("/")) for ignored in source.ignore
        )
        if below != paths[inner] and source.kind is other.kind and not is_kept_apart:
            yield (
                f"sources.{name}.path",
                (
                    f"source '{inner}' reads a folder in this one, {below}, and its rows would count here, too: name the files of this source, "
                    f"as in files: '*', or write ignore: ['{below}']"
                ),
            )


class _Role(enum.Enum):
    """Use that a job makes of a place, as it reads in a message about another place."""

    STATE = "the job's state"
    ROOT = "state.root, which has the folders of all jobs"
    LOCAL = "the job's local copies of state"
    TABLE = "table"
    SOURCE = "source"
    SINK = "sink"


_HARM = {
    _Role.STATE: "a vacuum or a drop of the job would delete it",
    _Role.ROOT: "another job may have its folder there",
    _Role.LOCAL: "the job deletes what it does not know there",
    _Role.TABLE: "a VACUUM of the table would delete it",
    _Role.SOURCE: "a job must not write into a folder that it reads",
    _Role.SINK: "a VACUUM of the table would delete it",
}
"""What happens to a place within a place of this role."""

_WRITTEN = {_Role.STATE, _Role.LOCAL, _Role.SINK}
"""Roles of places in which a job writes and deletes files."""


class _Place(NamedTuple):
    """Folder or table that a job's file names."""

    role: _Role
    key: str
    path: str
    """In the form that all spellings of the same place share."""

    name: str = ""

    def problem_beside(self, former: _Place) -> str | None:
        """Return why a job must not have this place beside a `former` one; None if it may.

        A job may read a place that it reads elsewhere, and join its rows with a table that it writes.
        """
        roles = {self.role, former.role}
        if not self._excludes(former):
            return None
        if self.path == former.path and roles == {_Role.SINK}:
            return f"sink '{former.name}' writes to the same table: give each a path of its own"
        if self.path == former.path and roles == {_Role.SOURCE, _Role.SINK}:
            return f"source '{former.name}' reads this folder: a job must not read what it writes; give another path"
        if is_within(self.path, former.path):
            return f"this is in the folder of {former._shown}: {_HARM[former.role]}; give another path"
        if is_within(former.path, self.path):
            return f"{former._shown} is in this folder: {_HARM[self.role]}; give another path"
        return None

    def _excludes(self, former: _Place) -> bool:
        """Return whether one of two places must not lie in the other."""
        roles = {self.role, former.role}
        if _Role.ROOT in roles:
            return self.role is _Role.SINK
        if roles == {_Role.TABLE, _Role.SINK}:
            return self.path != former.path
        return not roles.isdisjoint(_WRITTEN)

    @property
    def _shown(self) -> str:
        return f"{self.role.value} '{self.name}'" if self.name else f"{self.role.value}, {self.path},"


def _places(config: JobConfig) -> Iterator[_Place]:
    """Yield the places of a job. Sinks of a branch are in its own folder, and those of the job were checked with the job's file."""
    job = config.itself
    yield _Place(_Role.STATE, "state.root", normalised(job.job_folder))
    yield _Place(_Role.ROOT, "state.root", normalised(job.state.root))
    yield _Place(_Role.LOCAL, "state.local", normalised(str(job.local_folder)))
    for source, bound in config.sources.items():
        for name, path in bound.tables.items():
            yield _Place(_Role.TABLE, f"sources.{source}.tables.{name}", normalised(path), name)
    for name, bound in config.sources.items():
        if bound.path:
            yield _Place(_Role.SOURCE, f"sources.{name}.path", normalised(bound.path), name)
    if config.branch is None:
        for name, sink in config.sinks.items():
            yield _Place(_Role.SINK, f"sinks.{name}.path", normalised(sink.path), name)


def is_within(path: str, folder: str) -> bool:
    """Return whether a place is a folder or below it. Both are `normalised`."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def normalised(location: str) -> str:
    """Return a path or a URI, as loaded, in the form that all spellings of the same place share.

    Symbolic links are followed. `%20` counts as a space also in a path, as it does for deltalake.
    """
    scheme, mark, path = location.partition("://")
    if not mark:
        return unquote("/" + realpath(location).lstrip("/"))
    return _SCHEMES.get(scheme, scheme) + mark + normpath(unquote(path))


def _parallelism(config: JobConfig) -> Iterator[Problem]:
    if (config.parallelism or 1) > config.max_parallelism:
        limit = f"max_parallelism ({config.max_parallelism})"
        yield "parallelism", f"{counted(config.parallelism or 1, 'task')} cannot share {limit} key groups"


def _schedule(config: JobConfig) -> Iterator[Problem]:
    if config.schedule is None:
        return
    try:
        check_cron(config.schedule.cron)
    except ValueError as error:
        yield "schedule.cron", str(error)
    if not _is_zone(config.schedule.timezone):
        yield "schedule.timezone", f"there is no time zone '{config.schedule.timezone}'"


def _after(config: JobConfig) -> Iterator[Problem]:
    """Yield why a job cannot run by partitions of assets."""
    schedule = config.schedule
    if schedule is None or not schedule.after:
        return
    if config.mode != "interval":
        yield "schedule.after", "a partition is an interval: it needs mode 'interval'"
    if not schedule.automatic:
        yield "schedule.automatic", "with 'after' it is the assets that start runs: leave it out"
    if config.run.gaps == "fill":
        yield (
            "run.gaps",
            "with 'schedule.after', a missing day is one that has not come: runs wait for it. Leave it out",
        )
    if any(not name.strip() for name in schedule.after) or len({*schedule.after}) < len(schedule.after):
        yield "schedule.after", "names of assets, each once, such as JOB.SINK"
    if _is_zone(schedule.timezone) and ZoneInfo(schedule.timezone).utcoffset(None) is None and _has_hours(schedule):
        yield (
            "schedule.after",
            f"clocks in {schedule.timezone} go back once a year, and the same hour is two partitions then, with one key: cut hours by timezone: UTC",
        )


def _has_hours(schedule: ScheduleConfig) -> bool:
    """Return whether a schedule has intervals that are shorter than a day."""
    try:
        check_cron(schedule.cron)
    except ValueError:
        return False  # `_schedule` names it
    unit = longest_common_period(schedule.cron)
    return unit is None or unit.longest < Unit.DAY.longest


def _intervals(config: JobConfig) -> Iterator[Problem]:
    for name, source in config.sources.items():
        kind = source.kind
        if config.mode == "interval" and source.interval is None:
            yield f"sources.{name}", _missing_interval(kind)
        yield from ((f"sources.{name}.{key}", why) for key, why in _interval_options(source))
        yield from _pattern(config, name, source)
        if source.order == "first_seen" and source.interval is not None:
            yield (
                f"sources.{name}.order",
                "'first_seen' is for names without times, and 'interval' takes times from the names: write one of both",
            )
        if source.complete_intervals and source.interval is None:
            yield (
                f"sources.{name}.complete_intervals",
                "needs 'interval', the pattern of the file names: it tells where an interval ends",
            )


def _missing_interval(kind: SourceFormat) -> str:
    if "name" in kind.intervals_by:
        return "mode 'interval' needs 'interval', the pattern of the file names"
    return f"mode 'interval' needs 'interval', which says what the intervals of a {kind.noun} are by: {', '.join(kind.intervals_by)}"


def _interval_options(source: SourceConfig) -> Iterator[Problem]:
    """Yield why a format has no such intervals, and keys that are missing or too many."""
    own, kind = source.intervals, source.kind
    if own is None:
        return
    key = "interval" if isinstance(source.interval, str) else "interval.by"
    if own.by not in kind.intervals_by:
        yield key, f"a {kind.noun} has no intervals by {own.by}: write {{by: {'} or {by: '.join(kind.intervals_by)}}}"
    elif own.by == "name" and own.pattern is None:
        yield "interval.pattern", "this key is missing: the pattern of the file names"
    elif own.has_column and own.column is None:
        yield "interval.column", f"this key is missing: the {'partition ' if own.by == 'partition' else ''}column"
    if not own.has_column and own.column is not None:
        yield "interval.column", "only intervals by partition and by column have a column"
    if own.by == "column" and own.lateness is None:
        yield (
            "interval.lateness",
            "this key is missing: how long after the end of its period a row may come, such as 2d",
        )
    if own.by != "column" and own.lateness is not None:
        yield "interval.lateness", "only intervals by column have a lateness"
    if own.by == "committed" and own.pattern is not None:
        yield "interval.pattern", "commit times need no pattern"
    if own.idle_after != IntervalOptions().idle_after and not kind.has_partitions:
        yield "interval.idle_after", f"only partitions of a topic can be idle, and this is a {kind.noun}"


def _pattern(config: JobConfig, name: str, source: SourceConfig) -> Iterator[Problem]:
    """Yield why file names give no intervals, or not those that are meant."""
    key, scheduled = f"sources.{name}", "UTC" if config.schedule is None else config.schedule.timezone
    if source.timezone is not None and source.interval is None:
        yield f"{key}.timezone", "needs 'interval', the pattern of the file names"
    if source.timezone is not None and not _is_zone(source.timezone):
        yield f"{key}.timezone", f"there is no time zone '{source.timezone}'"
    elif source.pattern_text is not None:
        if source.timezone is None and _is_zone(scheduled) and ZoneInfo(scheduled).utcoffset(None) != timedelta(0):
            yield (
                f"{key}.interval",
                f"the schedule is in {scheduled}: write timezone: {scheduled} if the times in {source.timed} are in that zone, too, or timezone: UTC",
            )
        try:
            pattern = interval_pattern(source.pattern_text, source.timezone or "UTC")
        except ValueError as error:
            yield f"{key}.interval", f"'{source.pattern_text}' gives no intervals: {error}"
            return
        if source.complete_intervals and pattern.unit.ends_with_its_year:
            yield (
                f"{key}.complete_intervals",
                f"'{source.pattern_text}' ends a week with its year, and a file of the whole week would be late: name the files by %G-W%V, the ISO week",
            )


def _cut(config: JobConfig) -> Iterator[Problem]:
    """Yield a schedule with intervals in which no file of a source can begin: such a run would have no rows."""
    schedule, patterns = config.schedule, _patterns(config)
    if config.mode != "interval" or schedule is None or not patterns or len(patterns) < len(config.sources):
        return
    finest = min(patterns, key=lambda pattern: pattern.unit.longest)
    try:
        check_cron(schedule.cron)
        start = schedule.starts_at()
    except (ValueError, KeyError, OSError):
        return  # `_schedule` names it
    unit = longest_common_period(schedule.cron)
    if unit is not None and unit.longest >= finest.unit.longest:
        return
    for first, last in intervals_of_cron(schedule.cron, start, _TIMESTAMPS):
        ends = round(first.timestamp() * 1000), round(last.timestamp() * 1000)
        if not any(pattern.begins_in(*ends) for pattern in patterns):
            text = (
                f"no file can begin between {first.isoformat()} and {last.isoformat()}, which is an interval of '{schedule.cron}': the files have an "
                f"interval of a {finest.unit.value} ({finest.text}); give the schedule intervals at least as long, or use mode 'caught_up'"
            )
            yield "schedule.cron", text
            return


def _patterns(config: JobConfig) -> list[IntervalPattern]:
    """Return the patterns that can be read; `_pattern` names the others."""
    patterns: list[IntervalPattern] = []
    for source in config.sources.values():
        with suppress(ValueError, KeyError, OSError):
            patterns += [] if source.pattern is None else [source.pattern]
    return patterns


_TIMESTAMPS = 100
"""So many intervals of a schedule are looked at."""


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _source_formats(config: JobConfig) -> Iterator[Problem]:
    """Yield keys of a source that its format needs, and those that it does not have."""
    for name, source in config.sources.items():
        yield from _missing(f"sources.{name}", source, source.kind.required)
        for key, owners in foreign_keys(source.kind, SOURCE_FORMATS.values()).items():
            if getattr(source, key) and getattr(source, key) != getattr(_PLAIN, key):
                why = f"write format: {owners[0]}" if len(owners) == 1 else source.kind.why_not
                yield f"sources.{name}.{key}", f"the format {source.format} does not have it: {why}"


def _corrected(config: JobConfig) -> Iterator[Problem]:
    """Yield corrected input of no source, and what is wrong with it as a source."""
    for name in config.replay.sources:
        if name not in config.sources:
            yield f"replay.sources.{name}", f"the job has no such source (sources: {', '.join(config.sources)})"
            continue
        other = config.corrected(name)
        if other.interval is None:
            yield (
                f"replay.sources.{name}.interval",
                f"this key is missing: what the intervals of a {other.kind.noun} are by",
            )
        elif other.kind.is_versioned and other.intervals is not None and other.intervals.by == "committed":
            yield (
                f"replay.sources.{name}.interval",
                "commit times of corrected rows are those of the correction: write {by: partition, column: NAME}",
            )
        elif other.kind.has_partitions and config.sources[name].complete_intervals:
            yield (
                f"replay.sources.{name}",
                f"a topic has no punctuations, and '{name}' has complete_intervals: name a folder or a table",
            )
        elif other.kind.is_versioned and other.intervals is not None and other.intervals.by == "column":
            yield (
                f"replay.sources.{name}.interval",
                "rows by a column that come after their lateness count for the interval of their commit: write {by: partition, column: NAME}, or name files",
            )
            continue
        as_source = msgspec.structs.replace(config, sources={name: other}, sinks={}, mode="caught_up")
        for check in (_source_formats, _values, _intervals):
            yield from ((f"replay.{key}", why) for key, why in check(as_source))


def _missing(where: str, config: SourceConfig | SinkConfig, required: Iterable[str]) -> Iterator[Problem]:
    for key in required:
        if not getattr(config, key):
            yield where, f"the key '{key}' is missing"


_PLAIN = SourceConfig()


def _sink_formats(config: JobConfig) -> Iterator[Problem]:
    """Yield keys of a sink that its format needs, and those that it does not have; and a topic that the job reads."""
    for name, sink in config.sinks.items():
        where, kind = f"sinks.{name}", sink.kind
        if sink.mode == "merge" and kind.only_appended is not None:
            yield f"{where}.mode", f"rows are only added to {kind.only_appended}: write mode: append, or format: delta"
        yield from _missing(where, sink, kind.required)
        yield from ((f"{where}.{key}", why) for key, why in kind.refused.items() if getattr(sink, key))
        for key, owners in foreign_keys(kind, SINK_FORMATS.values()).items():
            if getattr(sink, key):
                yield f"{where}.{key}", f"the format {sink.format} does not have it: write format: {', '.join(owners)}"
        for source, bound in config.sources.items():
            if sink.topic and (bound.servers, bound.topic) == (sink.servers, sink.topic):
                yield f"{where}.topic", f"source '{source}' reads this topic: a job must not read what it writes"


def _values(config: JobConfig) -> Iterator[Problem]:
    """Yield texts that name no versions, offsets, topic or limit, and other values that a format refuses."""
    parsers: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("start", parse_start),
        ("skip_versions", parse_versions),
        ("skip_offsets", parse_offsets),
        ("max_quarantined", parse_quarantine_limit),
    )
    for name, source in config.sources.items():
        for key, parse in parsers:
            text = getattr(source, key)
            if text is not None:
                try:
                    parse(text)
                except ValueError as error:
                    yield f"sources.{name}.{key}", str(error)
        yield from ((f"sources.{name}.{key}", text) for key, text in source.kind.problems(source))
    for name, sink in config.sinks.items():
        yield from ((f"sinks.{name}.{key}", text) for key, text in sink.kind.problems(sink))


def _names(config: JobConfig) -> Iterator[Problem]:
    """Yield names of fields that are empty, or given twice."""
    bound = {f"sources.{name}": source.rename for name, source in config.sources.items()}
    bound |= {f"sinks.{name}": sink.rename for name, sink in config.sinks.items()}
    for where, names in bound.items():
        first: dict[str, str] = {}
        for field, name in names.items():
            if not name:
                yield f"{where}.rename.{field}", "the name is empty: a column needs one"
            elif first.setdefault(name, field) != field:
                yield (
                    f"{where}.rename.{field}",
                    f"field '{first[name]}' has the name '{name}', too: a column is one field",
                )


def _limits(config: JobConfig) -> Iterator[Problem]:
    if config.run.budget <= timedelta(0):
        yield "run.budget", "a run needs time: give at least 1s"
    if config.run.lease < _SHORTEST_LEASE:
        yield "run.lease", "shorter than 5s, a run would lose its job while it commits"
    if "://" in config.itself.state.local:
        yield "state.local", "copies of state are on the disk of each worker: expected a path, such as var/local"
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


def _kept_responses(config: JobConfig) -> Iterator[Problem]:
    for name, service in config.services.items():
        if service.keep_responses is None:
            if service.replay == "responses":
                yield (
                    f"services.{name}.replay",
                    f"there are no responses to take: give services.{name}.keep_responses, or write replay: call",
                )
        elif service.keep_responses <= timedelta(0):
            yield (
                f"services.{name}.keep_responses",
                "responses are kept for a time such as 90d; to keep none, remove this",
            )


def _deadline(config: JobConfig) -> Iterator[Problem]:
    if config.airflow.on_deadline is not None and config.airflow.deadline is None:
        yield "airflow.on_deadline", "it is never called without `airflow.deadline`: give one, or remove this"


def _alerts(config: JobConfig) -> Iterator[Problem]:
    for metric, text in config.alerts.items():
        try:
            parse_condition(metric, text)
        except ValueError as error:
            yield f"alerts.{metric}", str(error)
    webhook = config.tell.webhook
    if webhook is not None and not is_only_a_reference(webhook) and not _is_web_address(webhook):
        yield "tell.webhook", "it has to begin with http:// or https://, and to name a server"
    wasted = [key for key, way in _told(config) if way]
    if wasted and not config.alerts:
        yield wasted[0], "nobody is told of anything without `alerts`: give some, or remove this"


def _is_web_address(url: str) -> bool:
    try:
        place = urlsplit(url)
        return place.scheme in {"http", "https"} and bool(place.hostname) and place.port != 0
    except ValueError:  # its text has the URL, which may be secret
        return False


def _told(config: JobConfig) -> list[tuple[str, object]]:
    return [
        ("tell.command", config.tell.command),
        ("tell.webhook", config.tell.webhook),
        ("airflow.on_alert", config.airflow.on_alert),
    ]


_CHECKS: tuple[Callable[[JobConfig], Iterator[Problem]], ...] = (
    _file_name,
    _stored_name,
    _bindings,
    _parallelism,
    _schedule,
    _after,
    _nested_folders,
    _intervals,
    _cut,
    _source_formats,
    _corrected,
    _sink_formats,
    _values,
    _names,
    _limits,
    _services,
    _kept_responses,
    _deadline,
    _alerts,
)
