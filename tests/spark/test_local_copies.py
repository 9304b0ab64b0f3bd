"""Local copies of state may be lost, damaged or left by another process at any time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.home import Home
from tests.jobs.outcome import checkpoints
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

QUICK: dict[str, Any] = {"parallelism": 2, "backend": "rocksdb"}


@pytest.fixture
def half_way(home, run) -> Home:
    """A job between two micro-batches."""
    write_days(home.input, range(2))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    run(home, max_batches=1, **QUICK)
    return home


def copies(home: Home) -> list[Path]:
    """The folders of the copies that the last checkpoint names."""
    named = {name: facts.local_copies for name, facts in checkpoints(home.config())[-1].operators.items()}
    local = home.config().local_folder
    return [local / operator / groups / copy for operator, folders in named.items() for groups, copy in folders.items()]


def finish(home: Home, run) -> dict[str, Any]:
    run(home, **QUICK)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(2))))
    return checkpoints(home.config())[-1].metrics


def test_complete_copies_are_used(half_way, run):
    assert all(path.is_dir() for path in copies(half_way))
    metrics = finish(half_way, run)
    assert (metrics["local_copies_reused"], metrics.get("local_copies_rebuilt")) == (4, None)


def test_missing_copies_are_rebuilt(half_way, run):
    shutil.rmtree(half_way.config().local_folder)
    metrics = finish(half_way, run)
    assert (metrics.get("local_copies_reused"), metrics["local_copies_rebuilt"]) == (None, 4)


def test_unfinished_copy_is_rebuilt(half_way, run):
    (copies(half_way)[0] / "COMPLETE").unlink()
    assert finish(half_way, run)["local_copies_rebuilt"] == 1


@pytest.mark.parametrize("victim", ["CURRENT", "*.sst", "MANIFEST-*"])
@pytest.mark.parametrize("damage", ["gone", "cut off", "bits flipped"])
def test_damaged_copies_are_rebuilt(half_way, run, victim, damage):
    damaged = [file for path in copies(half_way) for file in path.glob(victim)]
    for file in damaged:
        content = file.read_bytes()
        file.unlink()
        if damage == "cut off":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "bits flipped":
            file.write_bytes(bytes(255 - byte for byte in content))
    assert len(damaged) == 4
    assert finish(half_way, run)["local_copies_rebuilt"] == 4


def test_copies_of_foreign_attempts_are_ignored(half_way, run):
    for path in copies(half_way):
        foreign = path.with_name("1-feedfacecafe")
        shutil.copytree(path, foreign)
        shutil.rmtree(path)
    assert finish(half_way, run)["local_copies_rebuilt"] == 4


def test_old_copies_are_removed(half_way, run):
    home = half_way
    write_days(home.input, range(2, 6), rows=20)
    run(home, **QUICK)
    folders = {path.parent for path in copies(home)}
    assert all(len(list(folder.iterdir())) <= 2 for folder in folders)


@pytest.fixture
def looked_up(half_way, run) -> Home:
    """Return the same job; its last micro-batch left caches of the delta backend."""
    home = half_way
    run(home, parallelism=2, backend="delta", max_batches=1)
    write_days(home.input, [2])
    return home


def finish_with_look_ups(home: Home, run) -> dict[str, Any]:
    run(home, parallelism=2, backend="delta")
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(3))))
    return checkpoints(home.config())[-1].metrics


def caches(home: Home) -> list[Path]:
    return [path.parent.with_name(f"{path.parent.name}-cache") / path.name for path in copies(home)]


def test_next_micro_batch_knows_earlier_reads_and_writes(looked_up, run):
    assert all(path.is_dir() for path in caches(looked_up))
    metrics = finish_with_look_ups(looked_up, run)
    assert metrics["local_copies_reused"] == 4
    assert metrics["state_cache_hits"] > 0


@pytest.mark.parametrize("victim", ["", "COMPLETE", "CURRENT", "*.sst"])
def test_lost_or_damaged_cache_means_empty_cache(looked_up, run, victim):
    for path in caches(looked_up):
        if not victim:
            shutil.rmtree(path)
        for file in path.glob(victim) if victim else ():
            file.unlink()
            file.write_bytes(b"damaged")
    metrics = finish_with_look_ups(looked_up, run)
    assert "local_copies_reused" not in metrics
    assert "rebuilt_rows" not in metrics
