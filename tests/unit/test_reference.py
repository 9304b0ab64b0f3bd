"""The reference of the public doors: its pages equal the docstrings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.jobs.home import PROJECT

QUICK = ["headrace", "headrace.operators", "headrace.testing", "headrace.errors"]


def check(*doors):
    """Compare the pages of doors with their docstrings, in another process: importing Airflow changes a process permanently."""
    command = [sys.executable, PROJECT / "setup" / "reference.py", "--check", *doors]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_reference_equals_docstrings():
    result = check(*QUICK)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
def test_reference_of_airflow_equals_docstrings():
    result = check("headrace.airflow")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
