"""`setup/compile_engine.py`: a module in C where this machine can make one, and one sentence where it can't."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.jobs.home import PROJECT

SCRIPT = "setup/compile_engine.py"
NATIVE = "engine/headrace/native"
COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
RUNS_IN = "from headrace import native; print(native.runs_in)"
HEADER = Path(sysconfig.get_paths()["include"]) / "Python.h"
needs_header = pytest.mark.skipif(not HEADER.exists(), reason="this Python has no header files")
needs_compiler = pytest.mark.skipif(COMPILER is None or not HEADER.exists(), reason="nothing can be compiled here")


@pytest.fixture
def clone(tmp_path) -> Path:
    """Return a folder with the script and the package, without anything compiled."""
    (tmp_path / "setup").mkdir()
    shutil.copy(PROJECT / SCRIPT, tmp_path / SCRIPT)
    (tmp_path / NATIVE).mkdir(parents=True)
    shutil.copy(PROJECT / "engine/headrace/__init__.py", tmp_path / "engine/headrace")
    for name in ("__init__.py", "objects.py", "_objects.c"):
        shutil.copy(PROJECT / NATIVE / name, tmp_path / NATIVE)
    return tmp_path


@pytest.fixture
def programs(tmp_path) -> Path:
    """Return a folder that will be the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def fake_compiler(programs: Path, script: str) -> None:
    (programs / "gcc").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "gcc").chmod(0o755)


def python(clone: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run Python in the clone; return the exit code and what it prints last."""
    without = {name: value for name, value in os.environ.items() if name != "HEADRACE_PURE_PYTHON"}
    environment = {**without, "PYTHONPATH": str(clone / "engine"), **variables}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


def modules(clone: Path) -> list[Path]:
    return [file for file in (clone / NATIVE).iterdir() if ".so" in file.name]


@pytest.mark.slow
@needs_compiler
def test_compiled_engine_runs_in_c(clone):
    code, message = python(clone, SCRIPT)
    assert (code, message) == (0, f"The engine runs in C: {modules(clone)[0].name}")
    assert python(clone, "-c", RUNS_IN) == (0, "C")
    assert python(clone, "-c", RUNS_IN, HEADRACE_PURE_PYTHON="1") == (0, "Python (HEADRACE_PURE_PYTHON is 1)")


@pytest.mark.slow
@needs_compiler
def test_module_of_another_source_is_not_loaded(clone):
    python(clone, SCRIPT)
    with (clone / NATIVE / "_objects.c").open("a") as source:
        source.write("/* another version */\n")
    assert python(clone, "-c", RUNS_IN) == (0, "Python (the module in C is not compiled)")
    python(clone, SCRIPT)
    assert len(modules(clone)) == 1
    assert python(clone, "-c", RUNS_IN) == (0, "C")


@pytest.mark.slow
@needs_compiler
def test_broken_module_leaves_everything_to_python(clone):
    python(clone, SCRIPT)
    modules(clone)[0].write_bytes(b"half a module")
    code, message = python(clone, "-c", RUNS_IN)
    assert code == 0
    assert message.startswith("Python (the module in C cannot be loaded: ")


@pytest.mark.slow
@needs_compiler
def test_engine_in_an_archive_runs_in_python(clone):
    python(clone, SCRIPT)
    archive = shutil.make_archive(str(clone / "code"), "zip", clone / "engine")
    message = python(clone, "-c", RUNS_IN, PYTHONPATH=archive)
    assert message == (0, "Python (the module in C is not compiled)")


def test_missing_compiler_is_said_plainly(clone, programs):
    assert python(clone, SCRIPT, PATH=str(programs)) == (
        1,
        "The engine runs in Python: no C compiler was found (gcc or clang). It works the same, at 45 % of the speed.",
    )


@pytest.mark.slow
@needs_compiler
def test_module_outlives_its_compiler(clone, programs):
    python(clone, SCRIPT)
    assert python(clone, SCRIPT, PATH=str(programs)) == (0, f"The engine runs in C: {modules(clone)[0].name}")


@pytest.mark.slow
@needs_compiler
def test_failure_removes_the_older_module(clone, programs):
    python(clone, SCRIPT)
    fake_compiler(programs, "exit 1")
    assert python(clone, SCRIPT, PATH=str(programs))[0] == 1
    assert modules(clone) == []


@needs_header
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", "could not compile _objects.c"),
        ('while [ "$1" != -o ]; do shift; done; echo half >"$2"', "made cannot be loaded"),
    ],
)
def test_failing_compiler_leaves_no_module(clone, programs, script, reason):
    fake_compiler(programs, script)
    code, message = python(clone, SCRIPT, PATH=str(programs))
    assert code == 1
    assert reason in message
    assert modules(clone) == []
