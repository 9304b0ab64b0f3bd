"""Syncs of several files, which share threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from headrace.storage import schemes
from headrace.storage.files import Files

IN_A_FORKED_PROCESS = """
import os, sys
from headrace.storage.files import Files
files = Files(sys.argv[1])
files.sync(["a", "b"])
child = os.fork()
if not child:
    files.sync(["a", "b"])
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def quick_syncs():
    """Sync as the program does."""


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_all_files_and_their_folder_are_synced(folder, monkeypatch):
    synced = []
    monkeypatch.setattr(schemes, "sync_path", synced.append)
    Files(str(folder)).sync(["a", "b", "c"])
    assert sorted(synced) == [folder, folder / "a", folder / "b", folder / "c"]


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_sync_fails_for_each_lost_file(folder, lost):
    (folder / lost).unlink()
    with pytest.raises(FileNotFoundError, match=f"/{lost}'"):
        Files(str(folder)).sync(["a", "b", "c"])


def test_sync_waits_for_all_before_it_fails(folder, monkeypatch):
    failed, ended = threading.Event(), []

    def sync(path):
        if path.name == "a":
            failed.set()
            raise OSError(path.name)
        assert failed.wait(20)
        ended.append(path.name)

    monkeypatch.setattr(schemes, "sync_path", sync)
    with pytest.raises(OSError, match="a"):
        Files(str(folder)).sync(["a", "b", "c"])
    assert {"b", "c"} <= set(ended)


def test_forked_process_syncs_with_own_threads(folder):
    line = [sys.executable, "-W", "ignore", "-c", IN_A_FORKED_PROCESS, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "7\n"
