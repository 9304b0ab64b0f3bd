"""`headrace doctor`: check whether this machine can run jobs, and say what to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli.findings import Finding, as_warnings, classes, connect, jars, java, of_findings, pyspark
from headrace.report import Report

if TYPE_CHECKING:
    from headrace.config import JobConfig


_PYTHON = ((3, 11), (3, 15))
_PACKAGES = ("deltalake", "duckdb", "pyarrow", "msgspec", "rocksdict", "xxhash")
_GIGABYTE = 1 << 30
_LITTLE, _TOO_LITTLE = 5 * _GIGABYTE, _GIGABYTE // 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    job: Annotated[Optional[str], typer.Option("--job", metavar="JOB", help="Only this job; all if left out.")] = None,  # noqa: UP045
) -> Report:
    """Check this machine, and say what to do.

    Checks Python, packages, Java, jars, disks, folders, configuration, services.

    Example:  headrace doctor --job flights

    Exit codes: 0 fit, warnings included; 1 something would stop a run.
    """
    findings = [_python(), _engine(), *_packages(), pyspark(), *_project(job)]
    return of_findings(_unique(findings), job)


def _unique(findings: list[Finding]) -> list[Finding]:
    """Return findings without repetitions: jobs share profiles and disks."""
    return list(dict.fromkeys(findings))


def _project(job: str | None) -> Iterator[Finding]:
    """Yield findings on the project's Java and jobs; outside of a project only on Java, unless a job is given."""
    from headrace.config import home_folder, list_jobs
    from headrace.errors import ConfigError

    try:
        home = home_folder()
    except ConfigError as error:
        if job:
            raise
        yield java(None)
        yield Finding("project", "warn", str(error))
        return
    yield java(home)
    yield classes(home)
    yield Finding("project", "ok", str(home))
    for name in [job] if job else list_jobs(home):
        yield from _job(name)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    low, high = _PYTHON
    if low <= sys.version_info[:2] < high:
        return Finding("python", "ok", f"{version} ({sys.executable})")
    return Finding("python", "fail", version, "use Python 3.11, 3.12, 3.13 or 3.14")


def _engine() -> Finding:
    """Report whether the engine's module in C is used. Without it, the engine does the same, at 45 % of the speed."""
    from headrace.native import runs_in

    return Finding("engine", "ok", runs_in)


def _packages() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    present, missing = [], []
    for name in _PACKAGES:
        try:
            present.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", "fail", f"not installed: {', '.join(missing)}", "Run: pip install headrace")
    yield Finding("packages", "ok", ", ".join(present))


def _job(name: str) -> Iterator[Finding]:
    from headrace.cli.check import services, sources
    from headrace.commit.run_check import checked_plan
    from headrace.config import load_job
    from headrace.errors import HeadraceError
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    try:
        config = load_job(name, checked=False)
        plan = checked_plan(config)
    except HeadraceError as error:
        yield Finding(f"job {name}", "fail", str(error), "mend the file")
        return
    yield Finding(f"job {name}", "ok", str(config.file))
    yield from connect(config, plan) if config.profile.is_connect else (jars(config),)
    yield from _folders(config)
    yield from sources(config, plan, CheckpointLog(JobFolder.of(config)))
    yield from as_warnings(list(services(config)))


def _folders(config: JobConfig) -> Iterator[Finding]:
    folders = {"state": config.state.root, "local": config.state.local}
    folders |= {f"sink {name}": sink.path for name, sink in config.sinks.items()}
    for name, folder in folders.items():
        if "://" not in folder:
            yield _folder(f"folder of {name}", Path(folder))


def _folder(what: str, folder: Path) -> Finding:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(what, "fail", f"{existing} cannot be written", "let this user write it, or mend the path")
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {free / _GIGABYTE:,.1f} GB free"
    if free < _TOO_LITTLE:
        return Finding(what, "fail", detail, "free some space: a run would fail half-way (and commit nothing)")
    if free < _LITTLE:
        return Finding(what, "warn", detail, "free some space, or shorten retention and run `headrace maintain`")
    return Finding(what, "ok", detail)
