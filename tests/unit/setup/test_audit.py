"""`setup/audit.py`: a package that no service was asked about is never taken for a sound one."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from tests.jobs.home import PROJECT

SOUND = {"name": "sound", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


@pytest.fixture
def audit(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(PROJECT / "setup"), *sys.path])
    return import_module("audit")


@pytest.mark.parametrize(
    ("packages", "code", "text"),
    [
        ([SOUND], 0, "nothing is known against 1 packages"),
        ([SOUND, BAD], 1, "bad 2: CVE-1 (mended in 3)"),
        ([SOUND, UNKNOWN], 3, "not audited, the service does not know 1 of 2 packages"),
        ([BAD, UNKNOWN], 1, "bad 2: CVE-1 (mended in 3); not audited, the service does not know 1 of 2 packages"),
        ([], 3, "not audited, the list is empty"),
    ],
)
def test_verdict_is_clean_where_all_were_asked(audit, packages, code, text):
    assert audit.verdict({"dependencies": packages}) == (code, text)


@pytest.mark.parametrize("says", ["", "half a repor", "No network"])
def test_service_without_answer_is_not_green(audit, monkeypatch, capsys, tmp_path, says):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setattr(audit.release, "PYTHON", program)
    assert audit.audited("locked packages", tmp_path / "requirements.txt") == audit.NOT_ASKED
    assert "no answer" in capsys.readouterr().out
