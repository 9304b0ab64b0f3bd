"""What `doctor` finds about the archive of Spark's classes."""

from __future__ import annotations

import pytest

from headrace.cli.findings import classes
from headrace.provision.class_archive import ClassArchive


@pytest.mark.parametrize(
    ("options", "obstacle", "outcome", "detail", "advice"),
    [
        ("-XX:SharedArchiveFile=a", None, "ok", "archived, 178 MB", ""),
        ("", None, "warn", "there is no archive of them", "Run: headrace setup"),
        ("", "conf has files", "ok", "conf has files", ""),
    ],
)
def test_doctor_shows_the_archive(tmp_path, monkeypatch, options, obstacle, outcome, detail, advice):
    monkeypatch.setattr(ClassArchive, "options", lambda _: options)
    monkeypatch.setattr(ClassArchive, "obstacle", lambda _: obstacle)
    monkeypatch.setattr(ClassArchive, "size", lambda _: 178_000_000)
    finding = classes(tmp_path)
    assert (finding.outcome, finding.advice) == (outcome, advice)
    assert detail in finding.detail
