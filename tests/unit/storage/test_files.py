"""Listings of a folder."""

from __future__ import annotations

import os

from headrace.storage.storage import Storage


def test_foreign_files_with_other_names_are_ignored(tmp_path):
    (tmp_path / "deeper").mkdir()
    for name in (b"ours.parquet", b"deeper/ours.parquet", b"theirs-\xff.parquet", b"deeper/\xe9t\xe9.parquet"):
        with open(os.fsencode(tmp_path) + b"/" + name, "w"):  # noqa: PTH123 - no Path has such a name
            pass
    assert Storage(str(tmp_path)).files() == {"ours.parquet", "deeper/ours.parquet"}
