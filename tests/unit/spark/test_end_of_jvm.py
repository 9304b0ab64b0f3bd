"""A driver waits for its JVM, which ends when its standard input does."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from headrace.spark import session

UNTIL_EOF = "import sys; sys.stdin.read()"
FOR_EVER = "import signal; signal.pause()"


@pytest.fixture
def jvm(monkeypatch):
    """Return a function that starts a program in place of the JVM."""
    started = []

    def start(program):
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        started.append(process)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_driver_outlives_its_jvm(jvm):
    process = jvm(UNTIL_EOF)
    session._wait_for_jvm()
    assert process.returncode == 0
    session._wait_for_jvm()


def test_driver_waits_for_no_stuck_jvm(jvm, monkeypatch):
    monkeypatch.setattr(session, "_LONGEST_END", 0.01)
    process = jvm(FOR_EVER)
    session._wait_for_jvm()
    assert process.returncode is None


@pytest.mark.parametrize("gateway", [None, SimpleNamespace(), SimpleNamespace(proc=None)])
def test_driver_of_spark_submit_waits_for_nothing(gateway, monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    session._wait_for_jvm()
