"""`headrace new`: make a small project with one job that runs at once."""

from __future__ import annotations

import keyword
import os
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli._arguments import AsJson

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

_NEXT = """\
{{name}}/ is a project with one job and two days of sample orders. Next:

  cd {{name}}
  headrace setup       fetches Delta's jars, and a Java if there is none
  headrace run {{name}}
  headrace sql {{name}} "select * from customers order by cents desc limit 5"

Then change pipelines/{{name}}.py. Its tests need no Spark: pytest
"""
_DAYS = (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
_ORDERS_A_DAY = 300
_CUSTOMERS, _LOYAL = 30, 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new")(new)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the folder and of the job.")],
    as_json: AsJson = False,
) -> None:
    """Make a small project with one job: pipeline, configuration, tests, DAG files, sample input.

    The job keeps totals of a shop's customers and sends vouchers to those who stay away. Change it into your own.

    Example:  headrace new shop

    Exit codes: 0; 2 when NAME is not a valid name, or its folder exists and is not empty.
    """
    folder = Path.cwd() / _job_name(name)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        from headrace.errors import ConfigError

        raise ConfigError(
            f"{folder} exists and is not empty; nothing was written. Choose another name, or move it away"
        )
    for template, target in FILES.items():
        _write(folder / _filled(target, name), _filled(_template(template), name))
    for number, day in enumerate(_DAYS):
        _write_orders(folder / "input" / "orders" / f"{day:%Y-%m-%d}.parquet", number, day)
    if as_json:
        from headrace.cli._output import print_json

        print_json({"project": str(folder), "files": [_filled(target, name) for target in FILES.values()]})
    else:
        print(_filled(_NEXT, name), end="")
    named = os.environ.get("HEADRACE_HOME")
    if named and Path(named).absolute() != folder:
        typer.echo(f"note: HEADRACE_HOME names another project, {named}: unset it first", err=True)


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
        "cents": [500 + 37 * index % 4500 for index in indices],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)
