"""Search for and loading of jobs and cluster profiles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.config._checks import check_job
from headrace.config._cluster import ClusterConfig, ClusterFile
from headrace.config._job import JobConfig, JobFile
from headrace.config._read import read_struct
from headrace.config._scalars import Place
from headrace.config._settings import check_settable
from headrace.errors import ConfigError
from headrace.names import check_name, did_you_mean

_HOME = "HEADRACE_HOME"
_JOBS = ("conf", "jobs")
_NEW = "'headrace new NAME' makes a project."


def home_folder() -> Path:
    """Return the project's folder, which holds `conf/jobs` and from which relative paths start.

    It is $HEADRACE_HOME, else the nearest folder with `conf/jobs` from the current one upwards. Raises `ConfigError`
    when there is none.
    """
    named = os.environ.get(_HOME)
    return _named_home(Path(named).expanduser().absolute()) if named else _nearest_home(Path.cwd())


def _named_home(home: Path) -> Path:
    if home.joinpath(*_JOBS).is_dir():
        return home
    reason = "has no folder conf/jobs" if home.is_dir() else "does not exist"
    msg = f"{_HOME} is '{home}', and that folder {reason}; set {_HOME} to a project's folder, or unset it. {_NEW}"
    raise ConfigError(msg)


def project_around(start: Path) -> Path | None:
    """Return the nearest folder with `conf/jobs` from a folder upwards; None where there is none."""
    return next((folder for folder in (start, *start.parents) if folder.joinpath(*_JOBS).is_dir()), None)


def _nearest_home(start: Path) -> Path:
    home = project_around(start)
    if home is not None:
        return home
    msg = (
        f"no Headrace project: neither {start} nor a folder above it has a folder conf/jobs. "
        f"Go to a project's folder (cd), or set {_HOME} to one. {_NEW}"
    )
    raise ConfigError(msg)


def list_jobs(home: Path | None = None) -> list[str]:
    """Return the names of the jobs in `conf/jobs/`, sorted, without reading the files."""
    return _names_in(_folder(home, "jobs"))


def known_jobs(home: Path | None = None) -> list[str]:
    """Return what `list_jobs` returns. Raises `ConfigError` when there is no job."""
    jobs = list_jobs(home)
    if not jobs:
        msg = f"there is no job: {_folder(home, 'jobs')} has no file NAME.yaml. Write one there. {_NEW}"
        raise ConfigError(msg)
    return jobs


def list_clusters(home: Path | None = None) -> list[str]:
    """Return the names of the profiles in `conf/clusters/`, sorted, without reading the files."""
    return _names_in(_folder(home, "clusters"))


def load_job(
    name: str,
    home: Path | None = None,
    cluster: str | None = None,
    *,
    keep_references: bool = False,
    checked: bool = True,
) -> JobConfig:
    """Read and check `conf/jobs/<name>.yaml` and the cluster profile that it names.

    `cluster` overrides the file's own `cluster`. `keep_references` keeps `${NAME}` in the profile's `spark` and
    `storage`, and in the job's `tell`, unchanged, so that the result contains no secret; for them see `expand_settings`. Without `checked`, rules
    that span several keys are left to `job_problems`. Raises `ConfigError` that names file, line, key and allowed
    values, with all problems of a file at once.
    """
    home = home or home_folder()
    file = _find("job", name, _folder(home, "jobs"))
    job, lines = read_struct(file, JobFile, Place(home, os.environ, keep_secrets=keep_references))
    if cluster is not None:
        job = msgspec.structs.replace(job, cluster=cluster)
    else:
        _check_cluster(job.cluster, home, f"{file}:{lines.get('cluster', 1)}: cluster")
    values = {field: getattr(job, field) for field in job.__struct_fields__}
    profile = load_cluster(job.cluster, home, keep_references=keep_references)
    config = JobConfig(**values, home=home, file=file, profile=profile, lines=lines)
    if checked:
        check_job(config)
    return config


def with_settings(config: JobConfig, settings: Mapping[str, str]) -> JobConfig:
    """Return a job with other values than its file has: YAML by dotted key, as `{"run.budget": "5m"}`. They are for branches.

    Raises `ConfigError` for a key that no branch can set, and where the file would be refused with these values.
    """
    if not settings:
        return config
    check_settable(settings)
    job, _ = read_struct(config.file, JobFile, Place(config.home, os.environ), settings)
    sections = {key.partition(".")[0] for key in settings}
    values = {section: getattr(job, section) for section in sections}
    changed = msgspec.structs.replace(config, **values, settings=dict(settings))
    check_job(changed)
    return changed


def _check_cluster(name: str, home: Path, where: str) -> None:
    """Check that a profile exists. Raises `ConfigError` that names the place in the job's file when it does not."""
    try:
        _find("cluster", name, _folder(home, "clusters"))
    except ConfigError as error:
        msg = f"{where}: {error}"
        raise ConfigError(msg) from error


def load_cluster(name: str, home: Path | None = None, *, keep_references: bool = False) -> ClusterConfig:
    """Read and check `conf/clusters/<name>.yaml`. Raises `ConfigError` as `load_job` does."""
    home = home or home_folder()
    file = _find("cluster", name, _folder(home, "clusters"))
    profile, _ = read_struct(file, ClusterFile, Place(home, os.environ, keep_references))
    values = {field: getattr(profile, field) for field in profile.__struct_fields__}
    return ClusterConfig(**values, name=name, file=file)


def checked_name(text: str, what: str = "name") -> str:
    """Return `text` if it is a valid name by `headrace.names.check_name`.

    Raises `ConfigError` otherwise.
    """
    try:
        return check_name(text, what)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _folder(home: Path | None, kind: str) -> Path:
    return (home or home_folder()) / "conf" / kind


def _names_in(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _find(what: str, name: str, folder: Path) -> Path:
    checked_name(name, f"{what} name")
    file = folder / f"{name}.yaml"
    if file.is_file():
        return file
    known = _names_in(folder)
    listed = f"known: {', '.join(known)}" if known else f"there are none in {folder}"
    msg = f"unknown {what} '{name}'{did_you_mean(name, known)} ({listed})"
    raise ConfigError(msg)
