"""Finding and loading jobs and cluster profiles."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.config._checks import check_job
from headrace.config._cluster import ClusterConfig, ClusterFile
from headrace.config._job import JobConfig, JobFile
from headrace.config._read import read_struct
from headrace.config._scalars import Place
from headrace.errors import ConfigError
from headrace.names import check_name, did_you_mean

_HOME = "HEADRACE_HOME"


def home_folder() -> Path:
    """The folder that holds `conf/` and from which relative paths start.

    It is $HEADRACE_HOME, else the folder that the `engine` package lies in. Raises `ConfigError`
    when the variable names no folder.
    """
    named = os.environ.get(_HOME)
    if not named:
        return Path(__file__).resolve().parents[2]
    home = Path(named).expanduser().absolute()
    if not home.is_dir():
        msg = f"{_HOME} is '{named}', and there is no such folder"
        raise ConfigError(msg)
    return home


def list_jobs(home: Path | None = None) -> list[str]:
    """The names of the jobs in `conf/jobs/`, sorted. The files are not read."""
    return _names_in(_folder(home, "jobs"))


def list_clusters(home: Path | None = None) -> list[str]:
    """The names of the profiles in `conf/clusters/`, sorted. The files are not read."""
    return _names_in(_folder(home, "clusters"))


def load_job(
    name: str, home: Path | None = None, cluster: str | None = None, *, keep_references: bool = False
) -> JobConfig:
    """Read and check `conf/jobs/<name>.yaml` and the cluster profile that it names.

    `cluster` takes the place of the file's own `cluster`. `keep_references` leaves `${NAME}` in the
    profile's `spark` and `storage` as it is written, so that no secret is in what is loaded; see
    `expand_settings`. Raises `ConfigError` that names file, line, key and allowed values, with all
    problems of a file at once.
    """
    home = home or home_folder()
    file = _find("job", name, _folder(home, "jobs"))
    job, lines = read_struct(file, JobFile, Place(home, os.environ))
    if cluster is not None:
        job = msgspec.structs.replace(job, cluster=cluster)
    values = {field: getattr(job, field) for field in job.__struct_fields__}
    profile = load_cluster(job.cluster, home, keep_references=keep_references)
    config = JobConfig(**values, home=home, file=file, profile=profile, lines=lines)
    check_job(config)
    return config


def load_cluster(name: str, home: Path | None = None, *, keep_references: bool = False) -> ClusterConfig:
    """Read and check `conf/clusters/<name>.yaml`. Raises `ConfigError` like `load_job`."""
    home = home or home_folder()
    file = _find("cluster", name, _folder(home, "clusters"))
    profile, _ = read_struct(file, ClusterFile, Place(home, os.environ, keep_references))
    values = {field: getattr(profile, field) for field in profile.__struct_fields__}
    return ClusterConfig(**values, name=name, file=file)


def checked_name(text: str, what: str = "name") -> str:
    """Return `text` if it is a name; see `headrace.names.check_name`.

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
