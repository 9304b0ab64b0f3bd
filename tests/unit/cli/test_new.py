"""`headrace new`: the project that it makes, apart from its run on Spark (tests/package)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.project import FILES, FROM_FILES
from headrace.config import load_cluster
from headrace.provision.jars import DELTA
from tests.jobs.home import PROJECT

DOORS = {"headrace", "headrace.airflow", "headrace.errors", "headrace.operators", "headrace.testing"}


def new(name: str):
    return CliRunner().invoke(app, ["new", name])


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a project as its user does: the package can be imported, this repository cannot."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "engine")}
    environment.pop("HEADRACE_HOME", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert new("shop").exit_code == 0
    return folder / "shop"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_template_is_used():
    templates = {file.name for file in resources.files("headrace.cli").joinpath("template").iterdir()}
    assert templates == {f"{name}.txt" for name in (*FILES, *FROM_FILES)}


def test_no_placeholder_is_left(shop):
    texts = [file.read_text() for file in shop.rglob("*") if file.is_file() and file.suffix != ".parquet"]
    assert not [text for text in texts if "{{" in text]


def test_next_steps_fit_80_columns(here, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    result = new("shop")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "headrace setup" in result.stdout
    assert result.stderr == ""


def test_other_home_in_the_environment_is_noted(here, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", "/srv/jobs")
    assert "HEADRACE_HOME names another project, /srv/jobs" in new("shop").stderr


@pytest.mark.slow
def test_own_tests_of_the_project_pass(shop):
    done = python(shop, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.parametrize("command", [("check",), ("format", "--check")])
def test_code_passes_ruff_by_default(shop, command):
    done = python(shop, "-m", "ruff", *command, "--isolated", "--no-cache", ".")
    assert done.returncode == 0, done.stdout


def test_code_imports_only_public_doors(shop):
    trees = [ast.parse(file.read_text()) for file in shop.rglob("*.py")]
    modules = {node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name.startswith("headrace")} <= DOORS


@pytest.mark.slow
def test_job_and_pipeline_fit(shop):
    done = python(shop, "-c", "from headrace.cli import main; main()", "explain")
    assert done.returncode == 0, done.stderr
    assert "CustomerTotals" in done.stdout


def test_profile_takes_the_jars_of_setup(shop):
    assert "jars" not in yaml.safe_load((shop / "conf/clusters/local.yaml").read_text())
    assert load_cluster("local", shop).jar_files == (*(f"{shop}/var/jars/{file}" for file in DELTA.digests()),)


def test_sample_input_is_two_days(shop):
    tables = [pq.read_table(file) for file in sorted((shop / "input/orders").iterdir())]
    assert [table.num_rows for table in tables] == [300, 300]
    silent = [set(table["customer"].to_pylist()) for table in tables]
    assert sorted(silent[0] - silent[1]) == [f"c{number}" for number in range(20, 30)]


def test_sample_input_has_money_and_days(shop):
    schemas = [pq.read_schema(file) for file in (shop / "input/orders").iterdir()]
    types = [[str(schema.field(name).type) for name in ("amount", "deliver_on")] for schema in schemas]
    assert types == [["decimal128(12, 2)", "date32[day]"]] * 2


def test_folder_with_content_is_refused(here):
    (here / "shop").mkdir()
    assert new("shop").exit_code == 0
    before = sorted((here / "shop").rglob("*"))
    result = new("shop")
    assert result.exit_code == 2
    assert f"{here}/shop exists and is not empty; nothing was written" in result.stderr
    assert sorted((here / "shop").rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "reason"),
    [("My-Shop", "is not a valid name of a job"), ("../shop", "not a valid"), ("class", "word of Python")],
)
def test_names_that_cannot_be_used_are_refused(here, name, reason):
    result = new(name)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert list(here.iterdir()) == []
