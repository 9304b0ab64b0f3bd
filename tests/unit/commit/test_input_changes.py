"""Which files differ from the files that a line of checkpoints took in."""

from __future__ import annotations

import pytest

from headrace.commit.input_changes import ChangeOfInput, cleaned_up, input_changes, recorded_files
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.sources.folder.listing import UNKNOWN, stamp
from headrace.sources.interval import Interval
from headrace.sources.position import FolderPosition, SourceFacts, TakenFile, digest
from headrace.sources.source import ListedFile, SourceFile
from headrace.storage.storage import Storage

COMMITTED = 1_000
WRITTEN = 500


def file(day, *, written=WRITTEN, size=10):
    return SourceFile(f"{day}.parquet", f"input/{day}.parquet", written * 1_000_000, size=size)


def listed(*files):
    return {"orders": [ListedFile(file, Interval(int(file.name[0]), int(file.name[0]) + 1)) for file in files]}


def line(*days):
    """Return a line that took in a file of each of these days, one per checkpoint."""
    files = [file(day) for day in days]
    return [checkpoint(0, Kind.INITIAL)] + [
        checkpoint(
            number + 1,
            Kind.BATCH,
            interval_start=int(file.name[0]),
            interval_end=int(file.name[0]) + 1,
            sources={
                "orders": SourceFacts(
                    position=FolderPosition(file.name), taken=(TakenFile(digest(file.name), stamp(file), UNKNOWN),)
                )
            },
        )
        for number, file in enumerate(files)
    ]


def checkpoint(number, kind, **fields):
    return Checkpoint(
        incarnation=1,
        checkpoint_id=number,
        kind=kind,
        run_id="run",
        attempt_id="attempt",
        max_parallelism=8,
        versions={},
        committed_at=COMMITTED,
        **fields,
    )


def changes_of(line, files):
    return [
        (input_change.change, input_change.file, input_change.checkpoint_id)
        for input_change in input_changes(line, files, Storage(""))
    ]


def test_same_files_are_no_change():
    assert not changes_of(line(1, 2, 3), listed(file(1), file(2), file(3)))


@pytest.mark.parametrize("again", [file(2, size=11), file(2, written=501)], ids=["size", "time"])
def test_file_written_again_has_changed(again):
    assert changes_of(line(1, 2, 3), listed(file(1), again, file(3))) == [(ChangeOfInput.CHANGED, "2.parquet", 2)]


def test_late_file_changes_its_passed_interval():
    assert changes_of(line(1, 3), listed(file(1), file(2), file(3))) == [(ChangeOfInput.NEW, "2.parquet", 2)]


@pytest.mark.parametrize("day", [0, 4], ids=["before the job began", "ahead"])
def test_file_after_the_last_checkpoint_is_unchanged(day):
    files = sorted([file(1), file(2), file(3), file(day)])
    assert not changes_of(line(1, 2, 3), listed(*files))


def test_missing_file_within_input_is_a_change():
    changes = input_changes(line(1, 2, 3), listed(file(1), file(3)), Storage(""))
    assert [str(change) for change in changes] == ["a file of source 'orders' that checkpoint 2 took in is gone"]


@pytest.mark.parametrize("left", [(), (3,), (2, 3)])
def test_input_removed_from_beginning_is_no_change(left):
    assert not changes_of(line(1, 2, 3), listed(*map(file, left)))
    taken_by = cleaned_up(recorded_files(line(1, 2, 3), "orders"), list(map(file, left)))
    assert [checkpoint.checkpoint_id for checkpoint in taken_by] == [day for day in (1, 2, 3) if day not in left]


def test_earliest_change_comes_first():
    changes = input_changes(line(1, 2, 3), listed(file(1), file(2, size=1), file(3, size=1)), Storage(""))
    assert [change.checkpoint_id for change in changes] == [2, 3]
    assert str(changes[0]) == "file 2.parquet of source 'orders' has changed since checkpoint 2 took it in"
