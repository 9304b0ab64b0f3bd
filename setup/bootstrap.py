"""Set up the project: virtual environment, locked packages, the project itself, and the steps of `headrace setup`.

    PYTHON setup/bootstrap.py [--quiet] [--s3]      (`make setup` finds the PYTHON)

With --s3 also the jars that Spark needs for an S3 object store: 690 MB.

Every step leaves a stamp of its inputs; a step whose stamp is current is skipped, and says so. Uses only the standard
library and headrace.provision. Nothing outside the project folder is written, apart from the caches of pip and uv.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compile_engine as engine  # type: ignore[import-not-found]  # a script's neighbour
from environment import HOME, VAR, VENV, environment, java_home  # type: ignore[import-not-found]  # a script's neighbour

from headrace.provision.jars import DELTA, S3, Jars, jars_folder
from headrace.provision.java import java_version, packaged_folder

STAMPS = VAR / "setup"
LOGS = VAR / "log"
PYTHON = VENV / "bin" / "python"
LAST_LINES = 30
COMPILED = ("engine", "pipelines", "dags")
"""What is compiled beside the packages: with PYTHONDONTWRITEBYTECODE set, each process would compile it anew."""
quiet = False
"""Say nothing of what is reused."""


class SetupError(Exception):
    """A step failed; the message gives advice."""


def main() -> int:
    """Run the steps; return the exit code."""
    for folder in (STAMPS, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    global quiet  # noqa: PLW0603  a script's one option
    quiet = "--quiet" in sys.argv
    started = time.perf_counter()
    try:
        _step("python", _digest(sys.version, str(Path(sys.executable).resolve())), _make_venv, PYTHON.exists)
        _step("packages", _digest(sys.version, _text("requirements.txt")), _install_packages, _venv_whole)
        _step("headrace", _digest(sys.version, _text("pyproject.toml"), str(HOME)), _install_project, _venv_whole)
        _step("engine", _compiled_from(), _compile_engine, _engine_whole)
        _step("spark", _provided_for(), _provide, _provided)
        if "--s3" in sys.argv:
            _step("spark-s3", _digest(str(S3.digests())), lambda: _provide("--s3"), lambda: _provided(S3))
    except SetupError as error:
        print(f"\nmake setup: {error}", file=sys.stderr)
        return 1
    if not quiet:
        print(
            f"Ready in {time.perf_counter() - started:.1f} s. `make demo` shows it at work, `make help` what else there is."
        )
    return 0


def _step(name: str, made_from: str, make: Callable[[], str], is_whole: Callable[[], bool]) -> None:
    stamp = STAMPS / name
    if stamp.exists() and is_whole():
        digest, _, message = stamp.read_text().partition("\n")
        if digest == made_from:
            if not quiet:
                print(f"  {name:<10} reused  {message}", flush=True)
            return
    started = time.perf_counter()
    message = make()
    stamp.write_text(f"{made_from}\n{message}")
    print(f"  {name:<10} {time.perf_counter() - started:4.0f} s  {message}", flush=True)


def _forget(*steps: str) -> None:
    for step in steps:
        (STAMPS / step).unlink(missing_ok=True)


def _make_venv() -> str:
    _forget("packages", "headrace")
    _run("python", sys.executable, "-m", "venv", "--clear", VENV)
    version = ".".join(map(str, sys.version_info[:3]))
    return f"Python {version} in .venv"


def _install_packages() -> str:
    _forget("headrace")  # sync removes packages that the lock doesn't name
    _run("packages", PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", HOME / "setup/uv.txt")
    options = ("--compile-bytecode", "--require-hashes")
    _run("packages", PYTHON, "-m", "uv", "pip", "sync", *options, HOME / "requirements.txt")
    names = [line for line in _text("requirements.txt").splitlines() if "==" in line]
    return f"{len(names)} packages pinned in requirements.txt"


def _install_project() -> str:
    editable = ("--no-deps", "--no-build-isolation", "--offline", "--editable", HOME)
    _run("headrace", PYTHON, "-m", "uv", "pip", "install", *editable)
    _run("compile", PYTHON, "-m", "compileall", "-q", *(HOME / folder for folder in COMPILED))
    return "the command .venv/bin/headrace"


def _venv_whole() -> bool:
    return PYTHON.exists() and any(VENV.glob("lib/python3.*/site-packages/pyspark/bin/spark-submit"))


def _compiled_from() -> str:
    return _digest(
        sys.version, engine.SOURCE.read_bytes(), str(engine.compiler()), str(engine.FLAGS), str(engine.obstacle())
    )


def _compile_engine() -> str:
    """Compile the module in C. Without it the engine runs in Python, so whatever happens is no error."""
    log = LOGS / "setup-engine.log"
    with log.open("w") as out:
        done = subprocess.run([PYTHON, HOME / "setup" / "compile_engine.py"], stdin=subprocess.DEVNULL,
                              stdout=out, stderr=subprocess.STDOUT, check=False)  # fmt: skip
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else f"The engine runs in Python: the compiler's step ended with {done.returncode}."


def _engine_whole() -> bool:
    return engine.obstacle() is not None or bool(engine.compiled().exists())


def _provided_for() -> str:
    """Return a digest of Delta's jars, packages and Java: the archive of Spark's classes fits one Spark and one Java."""
    return _digest(str(DELTA.digests()), _text("requirements.txt"), str(java_home() or packaged_folder(HOME)))


def _provide(*options: str) -> str:
    _run("spark", PYTHON.parent / "headrace", "setup", *options)
    java = java_home()
    version = java_version(java / "bin" / "java") if java else 0
    return f"Java {version}, {'S3' if options else 'Delta'} jars in var/jars"


def _provided(jars: Jars = DELTA) -> bool:
    return java_home() is not None and not jars.missing(jars_folder(HOME))


def _run(step: str, *command: str | Path) -> None:
    """Run `command` with its output in the step's log; show the end of the log if it fails."""
    log = LOGS / f"setup-{step}.log"
    with log.open("w") as out:
        done = subprocess.run(command, env={**os.environ, **environment()}, cwd=HOME, stdin=subprocess.DEVNULL,
                              stdout=out, stderr=subprocess.STDOUT, check=False)  # fmt: skip
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise SetupError(
            f"step '{step}' failed (exit code {done.returncode}). Its last lines:\n\n{tail}\n\n"
            f"All of it: {log}\nPut right what it names (the network? the disk?) and run `make setup` "
            "again: what is done is kept. `make clean` starts from nothing."
        )


def _text(path: str) -> str:
    return str((HOME / path).read_text())


def _digest(*parts: str | bytes) -> str:
    whole = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.sha256(whole).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
