"""Findings of checks, and those about this machine.

Findings of checks: ok, a warning, or a failure, each with advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.errors import CheckFailed, ConfigError
from headrace.report import Report, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.plan.stages import Plan


Outcome = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check: its name, the result, details, and advice."""

    check: str
    outcome: Outcome
    detail: str
    advice: str = ""


def of_findings(findings: Sequence[Finding], job: str | None = None) -> Report:
    """Return the report on findings; it ends with exit code 1 if one of them is a failure."""
    has_failed = any(finding.outcome == "fail" for finding in findings)
    rows = [(f.outcome, f.check, f"{f.detail}\n-> {f.advice}" if f.advice else f.detail) for f in findings]
    return Report(
        *facts(job=job, ok=not has_failed, findings=findings),
        Table.shown(("", "check", "what was found"), rows),
        exit_code=CheckFailed.exit_code if has_failed else 0,
    )


def as_warnings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the same findings, with each failure as a warning."""
    return [replace(finding, outcome="warn") if finding.outcome == "fail" else finding for finding in findings]


def java(home: Path | None) -> Finding:
    """Report the Java that a run would use."""
    from headrace.provision.java import find_java, java_version, no_java

    java_home = find_java(home)
    if java_home is None:
        return Finding("java", "fail", no_java(home), "Run: headrace setup")
    return Finding("java", "ok", f"{java_version(java_home / 'bin' / 'java')} ({java_home})")


def classes(home: Path) -> Finding:
    """Report whether there is an archive of Spark's classes for the Java and the Spark of a run."""
    from headrace.provision.class_archive import ClassArchive
    from headrace.provision.java import find_java
    from headrace.provision.pyspark import spark_home

    what = "classes of Spark"
    try:
        java_home = find_java(home)
        archive = None if java_home is None else ClassArchive(home, java_home, spark_home())
    except ConfigError:
        archive = None  # pyspark is missing, which is a finding of its own
    if archive is not None and archive.options():
        return Finding(what, "ok", f"archived, {archive.shown_size()}")
    without = "there is no archive of them: Spark starts 1 to 3 s later"
    if archive is not None and (obstacle := archive.obstacle()):
        return Finding(what, "ok", f"{without}. {obstacle}")
    return Finding(what, "warn", without, "Run: headrace setup")


def pyspark() -> Finding:
    """Report the pyspark that a run would use, and whether Delta's jars fit it."""
    from headrace.provision.pyspark import check_pyspark

    try:
        return Finding("pyspark", "ok", check_pyspark())
    except ConfigError as error:
        return Finding("pyspark", "fail", str(error))


def jars(config: JobConfig) -> Finding:
    """Report whether the jars of the job's cluster profile are on this machine."""
    from headrace.provision.jars import absent_jars, how_to_get

    what = f"jars of cluster {config.cluster}"
    jars = config.profile.jar_files
    absent = absent_jars(jars)
    if absent:
        return Finding(what, "fail", f"{config.profile.file}: there is no {', '.join(absent)}", how_to_get(absent))
    return Finding(what, "ok", f"{len(jars)} there")


def connect(config: JobConfig, plan: Plan) -> Iterator[Finding]:
    """Report whether a job can run on the Connect server of its cluster profile, as far as this machine knows."""
    from headrace.commit.run_check import not_on_connect
    from headrace.provision.pyspark import check_connect

    yield from (Finding("Spark Connect", "fail", problem) for problem in not_on_connect(config, plan))
    try:
        ready = f"{config.profile.shown_master} by pyspark {check_connect()}: no Java is needed here"
    except ConfigError as error:
        yield Finding("Spark Connect", "fail", str(error))
    else:
        yield Finding("Spark Connect", "ok", ready)


def runner(config: JobConfig, plan: Plan) -> Iterator[Finding]:
    """Report whether this machine has what the runner of the job's cluster profile needs."""
    if config.profile.runner == "spark" and config.profile.is_connect:
        yield from connect(config, plan)
        return
    if config.profile.runner == "spark":
        yield from (java(config.home), pyspark(), jars(config))
        return
    from headrace.commit.run_check import only_on_spark

    problems = [*only_on_spark(config, plan)]
    yield from (Finding("runner", "fail", problem, "or run it with --runner spark") for problem in problems)
    if not problems:
        yield Finding("runner", "ok", f"local, as cluster {config.cluster} says: neither Java nor pyspark is needed")
