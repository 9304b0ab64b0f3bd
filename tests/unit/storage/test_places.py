"""Places: what is printed of them, and what their refusals say."""

from __future__ import annotations

import io

import pytest
from rich.pretty import pretty_repr

from headrace.errors import StorageError
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

SECRET = {"AWS_SECRET_ACCESS_KEY": "hush"}


@pytest.mark.parametrize("kind", [Storage, JobFolder])
def test_credentials_are_never_printed(kind):
    place = kind("s3://bucket/job", SECRET)
    printed = io.StringIO()
    print(place, repr(place.table()), pretty_repr(place), file=printed)
    assert "s3://bucket/job" in printed.getvalue()
    assert "hush" not in printed.getvalue()


def test_another_place_has_the_same_credentials():
    place = JobFolder("s3://bucket/job", SECRET)
    assert place.at("s3://lake/board") == Storage("s3://lake/board", SECRET)
    assert place.below("landed") == Storage("s3://bucket/job/landed", SECRET)


def test_missing_file_is_found_missing(tmp_path):
    place = Storage(str(tmp_path))
    assert (place.find("gone"), place.find_parquet("gone"), place.size("gone"), place.has("gone")) == (
        None,
        None,
        None,
        False,
    )
    with pytest.raises(StorageError, match=f"refused to read {tmp_path}/gone: "):
        place.read("gone")


def test_lists_of_a_missing_folder_are_empty(tmp_path):
    place = Storage(str(tmp_path / "gone"))
    assert (place.files(), place.sizes(), place.folders(), place.usage()) == (set(), {}, set(), {})


def test_unrelated_file_is_not_in_the_way(tmp_path):
    """An error's text may name any file: only a path that goes through it makes it the cause."""
    (tmp_path / "module.zip").write_text("")
    place = Storage(str(tmp_path))
    with pytest.raises(StorageError, match="free space") as refusal, place.writing("a"):
        raise OSError(28, f"No space left on device, in {tmp_path}/module.zip/worker.py")
    assert "is a file" not in str(refusal.value)
