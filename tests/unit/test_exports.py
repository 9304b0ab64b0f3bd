"""The rule for public names: the names in `__all__` of the five doors. Everything else is internal."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from itertools import chain

import pytest

from tests.jobs.home import PROJECT

PACKAGE = PROJECT / "engine" / "headrace"
DOORS = ("headrace", "headrace.airflow", "headrace.errors", "headrace.operators", "headrace.testing")
NEEDS_AIRFLOW = "headrace.airflow"
USER_CODE = [
    *(PROJECT / "pipelines").rglob("*.py"),
    *(PROJECT / "dags").rglob("*.py"),
    *(PROJECT / "docs").glob("*.md"),
    PROJECT / "README.md",
    *(file for file in PACKAGE.rglob("template*/**/*") if file.is_file()),
]
IMPORT = re.compile(r"^\s*(?:from|import) (headrace(?:\.\w+)*)", re.MULTILINE)


def names_of(door):
    """Read a door's `__all__`; that of Airflow's without importing Airflow, which changes a process for good."""
    if door != NEEDS_AIRFLOW:
        return importlib.import_module(door).__all__
    body = ast.parse((PACKAGE / "airflow" / "__init__.py").read_text()).body
    return next(
        ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


def natural(name):
    """Return a key that sorts constants first, and numbers within names by their size."""
    return not name.isupper(), [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("door", DOORS)
def test_public_names_are_sorted(door):
    names = names_of(door)
    assert names == sorted(set(names), key=natural)


@pytest.mark.parametrize("door", [door for door in DOORS if door != NEEDS_AIRFLOW])
def test_public_names_exist_and_are_documented(door):
    module = importlib.import_module(door)
    undocumented = [name for name in module.__all__ if not (inspect.getdoc(getattr(module, name)) or "").strip()]
    assert undocumented == []


def test_name_has_one_door():
    names = list(chain.from_iterable(map(names_of, DOORS)))
    assert [name for name in names if names.count(name) > 1] == []


def test_users_door_finds_each_of_its_names():
    door = importlib.import_module("headrace")
    assert sorted(chain.from_iterable(door._MODULES.values()), key=natural) == door.__all__
    for module, names in door._MODULES.items():
        defined = vars(importlib.import_module(f"headrace.{module}"))
        assert [name for name in names if name not in defined] == []


def test_every_error_is_public():
    from headrace import errors

    classes = [name for name, value in vars(errors).items() if inspect.isclass(value)]
    assert sorted(classes) == errors.__all__


@pytest.mark.parametrize("file", USER_CODE, ids=lambda file: str(file.relative_to(PROJECT)))
def test_user_code_goes_through_doors(file):
    assert {name for name in IMPORT.findall(file.read_text()) if name not in DOORS} == set()


def test_importing_headrace_loads_nothing_else():
    code = "import sys, headrace; print([name for name in sys.modules if name.startswith('headrace.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Pipelin'"):
        importlib.import_module("headrace").Pipelin  # noqa: B018


def test_no_module_hides_the_standard_library():
    assert {path.stem for path in PACKAGE.iterdir()} & sys.stdlib_module_names == set()


@pytest.mark.slow
def test_package_folders_contain_no_scripts():
    """Python puts a script's folder first on `sys.path`, so its neighbours would hide other modules; not with `python -m`."""
    scripts = [file for file in PACKAGE.rglob("*.py") if _is_script(file) and file.name != "worker_daemon.py"]
    assert [file.name for file in scripts] == ["driver.py"]
    assert [file for script in scripts for file in script.parent.glob("*.py")] == scripts


def _is_script(file):
    tests = (node.test for node in ast.parse(file.read_text()).body if isinstance(node, ast.If))
    return any("__main__" in ast.unparse(test) for test in tests)
