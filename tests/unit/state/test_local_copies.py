"""Local copies of RocksDB state: which folder is a base, an attempt, or neither."""

from __future__ import annotations

import pytest

from headrace.state.key_groups import KeyGroupRange
from headrace.state.local_copies import LocalCopies, copy_name
from headrace.state.rocksdb import RocksDbBackend

BASE, KILLED = copy_name(1, "base"), copy_name(2, "killed")


@pytest.fixture
def copies(tmp_path):
    return LocalCopies.of(tmp_path, "delay", KeyGroupRange(0, 63))


@pytest.fixture
def base(copies):
    """A finished copy with one entry."""
    write(copies.fresh(BASE), b"vk", b"1")
    copies.complete(BASE)
    return BASE


def write(path, entry, value):
    backend = RocksDbBackend(path)
    backend.write_batch([(entry, value)])
    backend.close()


def read(path):
    backend = RocksDbBackend(path)
    result = dict(backend.items())
    backend.close()
    return result


def test_copy_has_operator_range_checkpoint_and_attempt(copies, tmp_path):
    assert copies.path(copy_name(7, "abc")) == tmp_path / "delay" / "0-63" / "7-f2-abc"


def test_attempt_sees_its_base_without_changing_it(copies, base):
    attempt = copies.link(base, "2-attempt")
    assert read(attempt) == {b"vk": b"1"}
    write(attempt, b"vk", b"2")
    write(attempt, b"vx", b"3")
    assert read(attempt) == {b"vk": b"2", b"vx": b"3"}
    assert read(copies.path(base)) == {b"vk": b"1"}


def test_only_table_files_are_hard_links(copies, base):
    attempt = copies.link(base, "2-attempt")
    shared = {file.name for file in attempt.iterdir() if file.samefile(copies.path(base) / file.name)}
    assert shared
    assert {name.rpartition(".")[2] for name in shared} == {"sst"}


def test_attempts_on_one_base_are_independent(copies, base):
    first, second = copies.link(base, "2-first"), copies.link(base, "2-second")
    write(first, b"vk", b"first")
    write(second, b"vk", b"second")
    assert (read(first)[b"vk"], read(second)[b"vk"]) == (b"first", b"second")


def test_unfinished_copy_is_no_base(copies, base):
    write(copies.link(base, KILLED), b"vk", b"2")
    assert copies.is_complete(base)
    assert not copies.is_complete(KILLED)
    copies.complete(KILLED)
    assert copies.is_complete(KILLED)


@pytest.mark.parametrize("damage", ["missing", "cut off", "too much"])
def test_damaged_copy_is_no_base(copies, base, damage):
    manifest = next(copies.path(base).glob("MANIFEST-*"))
    if damage == "missing":
        manifest.unlink()
    elif damage == "cut off":
        manifest.write_bytes(manifest.read_bytes()[:-10])
    else:
        (copies.path(base) / "999999.sst").touch()
    assert not copies.is_complete(base)


def test_attempt_on_finished_base_is_unfinished(copies, base):
    copies.link(base, "2-attempt")
    assert not copies.is_complete("2-attempt")


def test_copy_of_former_format_is_no_base(copies):
    write(copies.fresh("1-base"), b"vk", b"1")
    copies.complete("1-base")
    assert not copies.is_complete("1-base")


@pytest.mark.parametrize("copy", [None, copy_name(9, "never-made")])
def test_missing_copy_is_not_complete(copies, copy):
    assert not copies.is_complete(copy)


def test_attempt_never_writes_to_existing_folder(copies, base):
    with pytest.raises(FileExistsError):
        copies.fresh(base)
    with pytest.raises(FileExistsError):
        copies.link(base, base)


def test_discarding_base_keeps_attempts_with_shared_files(copies, base):
    attempt = copies.link(base, "2-attempt")
    copies.discard(base)
    assert not copies.path(base).exists()
    assert read(attempt) == {b"vk": b"1"}


def test_discarding_a_missing_copy_is_no_error(copies):
    copies.discard("9-never-made")
    copies.discard_before(5)


def test_old_copies_are_removed_and_strangers_stay(copies, base):
    for name in ("2-a", "2-b", "10-c"):
        copies.fresh(name)
    (copies.folder / "notes").mkdir()
    copies.discard_before(2)
    assert sorted(path.name for path in copies.folder.iterdir()) == ["10-c", "2-a", "2-b", "notes"]
