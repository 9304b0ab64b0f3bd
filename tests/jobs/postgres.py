"""A PostgreSQL server for one test, or a database on the server that HEADRACE_TEST_POSTGRES names."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.jobs.ports import free_port

GIVEN = "HEADRACE_TEST_POSTGRES"
"""Names a database to use instead: postgresql+psycopg2://user:password@host:port/name. It has to be empty."""


@contextmanager
def postgres(options: str = "") -> Iterator[str]:
    """Yield the SQLAlchemy URL of an empty database; skip the test where there is no PostgreSQL."""
    if given := os.environ.get(GIVEN):
        yield given
        return
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    as_user = _as_unprivileged_user(folder)
    try:
        data, port = folder / "data", free_port()
        _run([*as_user, str(programs / "initdb"), "-D", str(data), "-U", "airflow", "--auth=trust", "--no-sync"])
        settings = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200 {options}"
        control = [*as_user, str(programs / "pg_ctl"), "-D", str(data), "-w"]
        _run([*control, "-o", settings, "-l", str(folder / "log"), "start"])
        try:
            yield f"postgresql+psycopg2://airflow@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """Return the folder of PostgreSQL's programs."""
    result = shutil.which("pg_ctl")
    installed = [result] if result else sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")))
    if not installed:
        pytest.skip(
            f"there is no PostgreSQL on this machine: install it, or set {GIVEN} to the URL of an empty database"
        )
    return Path(installed[-1]).parent


def _as_unprivileged_user(folder: Path) -> list[str]:
    """Return the words that run a command as an unprivileged user, who then owns `folder`: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip(f"PostgreSQL does not run as root, and there is no setpriv to become somebody else: set {GIVEN}")
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


def _run(command: list[str]) -> None:
    # pg_ctl passes its output to the server: a pipe would never end.
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=120)
