"""What the DAG files read from conf/: plain YAML, and only the keys that a DAG is made of.

The whole schema is the command line's business: the first task of each run is `headrace check`, which knows
every key. This module is imported at every parse of a DAG file, so it imports next to nothing.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DURATION_PATTERN = r"^([0-9]+|([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$"
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class JobFileError(Exception):
    """A file in conf/ that no DAG can be made from. The message names the file and what is wrong in it."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a task needs to know of conf/clusters/<name>.yaml to submit to it."""

    name: str
    master: str
    deploy_mode: str
    connection: str | None
    spark: dict[str, str]
    jars: tuple[str, ...]
    py_files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a DAG needs to know of conf/jobs/<name>.yaml."""

    name: str
    description: str
    owner: str
    tags: tuple[str, ...]
    cron: str | None
    start: datetime
    timezone: str
    mode: str
    budget: timedelta
    grace: timedelta
    retries: int
    retry_delay: timedelta
    compact_every: int | None
    retention_hours: float
    parallelism: int | None
    cluster: Cluster
    sinks: dict[str, str]


def home() -> Path:
    """Return the project folder: HEADRACE_HOME, or the folder above dags/."""
    named = os.environ.get("HEADRACE_HOME")
    return Path(named) if named else Path(__file__).resolve().parent.parent


def read_jobs() -> tuple[list[Job], list[JobFileError]]:
    """Read every file in conf/jobs/, by name; what can't be read comes back as errors, in the same order."""
    jobs: list[Job] = []
    errors: list[JobFileError] = []
    for path in sorted((home() / "conf" / "jobs").glob("*.y*ml")):
        try:
            jobs.append(_read_job(path))
        except JobFileError as error:
            errors.append(error)
    return jobs, errors


def command(*words: str) -> str:
    """Return the shell line that runs `headrace WORDS` in the Python that runs Airflow's task."""
    return " ".join(("headrace", *words))


def task_environment() -> dict[str, str]:
    """Return what a task's child process needs beyond the environment of Airflow's own process."""
    here = str(Path(sys.executable).parent)
    return {
        "HEADRACE_HOME": str(home()),
        "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
    }


def expand(text: str) -> str:
    """Replace `${NAME}` and `${NAME:-default}` in what is no secret, or when a task runs.

    Spark's settings are expanded by the task alone, so that no secret of the environment is in a serialised DAG.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1]) or match[2]
        if found is None:
            raise JobFileError(f"environment variable {match[1]} is not set; set it for Airflow's workers")
        return found

    return _REFERENCE.sub(value, text)


def locate(path: str) -> str:
    """Return a URI as it is, and a relative path as one below the project folder."""
    if "://" in path or path.startswith("${"):
        return path
    return str(home() / path)


def duration(text: str | int) -> timedelta:
    """Turn `1h30m`, `90` (seconds) and the like into a span; ValueError for anything else."""
    text = str(text)
    if not text or not re.match(DURATION_PATTERN, text):
        raise ValueError(f"'{text}' is no duration: write 30m, 1h30m, 2d or a number of seconds")
    if text.isdigit():
        return timedelta(seconds=int(text))
    return sum(
        (timedelta(**{_UNITS[unit]: int(amount)}) for amount, unit in re.findall(r"([0-9]+)(ms|[wdhms])", text)),
        timedelta(),
    )


def _read_job(path: Path) -> Job:
    content = _mapping(path)
    try:
        return _job(path, content)
    except JobFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ZoneInfoNotFoundError) as error:
        said = f"key {error} is missing" if type(error) is KeyError else str(error)
        raise JobFileError(
            f"{_shown(path)}: {said}. `headrace check {path.stem}` names line and allowed values"
        ) from error


def _job(path: Path, content: dict[str, Any]) -> Job:
    name = content["job"]
    if name != path.stem or not _NAME.fullmatch(name):
        raise ValueError(f"job: '{name}' must be the file's name, in lower case letters, digits and _")
    schedule = content.get("schedule") or {}
    run = content.get("run") or {}
    timezone = schedule.get("timezone", "UTC")
    mode = content.get("mode", "caught_up")
    if mode not in {"caught_up", "interval"}:
        raise ValueError(f"mode: '{mode}' must be caught_up or interval")
    return Job(
        name=name,
        description=content.get("description", ""),
        owner=content.get("owner", "headrace"),
        tags=tuple(content.get("tags") or ()),
        cron=schedule.get("cron"),
        start=_moment(schedule.get("start", "2020-01-01"), timezone),
        timezone=timezone,
        mode=mode,
        budget=duration(run.get("budget", "30m")),
        grace=duration(run.get("grace", "5m")),
        retries=int(run.get("retries", 2)),
        retry_delay=duration(run.get("retry_delay", "1m")),
        compact_every=(content.get("compaction") or {}).get("every"),
        retention_hours=float((content.get("retention") or {}).get("hours", 168)),
        parallelism=content.get("parallelism"),
        cluster=_read_cluster(expand(str(content.get("cluster", "local"))), path),
        sinks={sink: locate(expand(str(settings["path"]))) for sink, settings in (content.get("sinks") or {}).items()},
    )


def _read_cluster(name: str, job: Path) -> Cluster:
    path = home() / "conf" / "clusters" / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml"))) or "none"
        raise JobFileError(f"{_shown(job)}: cluster: no profile '{name}' in conf/clusters/; there are: {known}")
    content = _mapping(path)
    if not isinstance(content.get("master"), str):
        raise JobFileError(f"{_shown(path)}: key 'master' is missing")
    return Cluster(
        name=name,
        master=content["master"],
        deploy_mode=content.get("deploy_mode", "client"),
        connection=content.get("connection"),
        spark={key: _setting(value) for key, value in (content.get("spark") or {}).items()},
        jars=tuple(map(locate, content.get("jars") or ())),
        py_files=tuple(map(locate, content.get("py_files") or ())),
    )


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(), Loader=Loader)  # noqa: S506  one of the two safe loaders
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise JobFileError(f"{_shown(path)}: {error}") from error
    if not isinstance(content, dict):
        raise JobFileError(f"{_shown(path)}: is no mapping of keys to values")
    return content


def _moment(given: object, timezone: str) -> datetime:
    moment = datetime.fromisoformat(str(given))
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(timezone))


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(path: Path) -> str:
    return str(path.relative_to(home()))
