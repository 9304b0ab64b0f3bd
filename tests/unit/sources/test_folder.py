"""The folder source: slices, and late files that belong to no slice. One file a day, from 2024-03-01."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from headrace.errors import ConfigError, SourceError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.intervals import taken_in
from headrace.plan.loader import plan_of
from headrace.sources.folder.source import FolderSource
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.position import NO_FACTS, FolderPosition, SourceFacts, digest
from headrace.sources.slices import JobPosition, SliceRequest
from headrace.sources.source import TakenIn, Want
from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk, memory_disk
from tests.jobs.home import Home
from tests.jobs.purchase_files import day_name, day_start, purchases_of, write_rows


def days(first, end):
    return Interval(day_start(first), day_start(end))


class Job:
    """A folder, and the checkpoints of its reader."""

    def __init__(self, home):
        self.home = home
        self.lineage = []
        self.facts = NO_FACTS
        self.clock = itertools.count()

    def write(self, *numbers):
        for number in numbers:
            write_rows(self.home.input, day_name(number), [])
            os.utime(self.home.input / day_name(number), (next(self.clock),) * 2)

    def remove(self, number):
        (self.home.input / day_name(number)).unlink()

    @property
    def source(self):
        config = self.home.config()
        return FolderSource(plan_of(config.code).sources[0], config.sources["purchases"], Storage(""))

    def plan(self, until=None, **what):
        config = self.home.config()
        recorded = None if until is None else {"purchases": SourceFacts(position=FolderPosition(until))}
        at = JobPosition(
            {"purchases": self.facts}, {}, {"purchases": taken_in(self.lineage, "purchases")}, 0, 0, Storage("")
        )
        return Intake(plan_of(config.code), config).next(at, SliceRequest(**what, until=recorded))

    def take_in(self, **what):
        """Commit the next slice; return the files."""
        taken = self.plan(**what)
        if taken is None:
            return []
        self.facts = taken.sources["purchases"]
        start, end = (taken.interval.start, taken.interval.end) if taken.interval else (None, None)
        self.lineage.append(
            Checkpoint(
                checkpoint_id=len(self.lineage), kind=Kind.BATCH, run_id="r", attempt_id="a", max_parallelism=1, versions={"keyed_state": 0},
                committed_at=0, incarnation=1, sources={"purchases": self.facts}, interval_start=start, interval_end=end,
            )
        )  # fmt: skip
        return [file.name for file in taken.files]

    def names(self):
        return [[file.name for file in checkpoint.sources["purchases"].taken] for checkpoint in self.lineage]


def digests(*numbers):
    return sorted(digest(day_name(number)) for number in numbers)


@pytest.fixture
def job(tmp_path):
    return Job(Home(tmp_path))


def test_checkpoint_records_new_names_alone(job):
    for number in (0, 1):
        job.write(number)
        job.take_in()
    assert job.names() == [digests(0), digests(1)]


def test_late_file_behind_an_archived_one_fails(job):
    job.write(0, 2)
    job.take_in()
    job.remove(0)
    job.write(1)
    with pytest.raises(SourceError, match=rf"1 file appeared behind .*{day_name(2)}.* newest is {day_name(1)}"):
        job.take_in()


def test_archived_files_do_not_stop_a_job(job):
    job.write(0, 1)
    job.take_in()
    job.remove(0)
    job.write(2)
    assert job.take_in() == [day_name(2)]


def test_late_file_names_the_checkpoint_before(job):
    for day in (1, 3, 4):
        job.write(day)
        job.take_in()
    job.write(2)
    with pytest.raises(SourceError, match=r"headrace restore \w+ --to 0 --why"):
        job.plan()


def test_late_file_before_all_intervals_has_none(job):
    job.write(0, 1)
    job.take_in()
    job.write(-1)
    with pytest.raises(
        SourceError,
        match=r"02-29.parquet. It would never be read. Nothing was taken in. 'headrace input purchases --acknowledge 2024-02-29",
    ):
        job.take_in()


def test_late_file_names_the_gap_it_fills(job):
    job.write(0, 2)
    job.take_in(until=day_name(0))
    job.take_in()
    job.write(1)
    with pytest.raises(SourceError, match="headrace backfill purchases --from 2024-03-02 --to 2024-03-03"):
        job.take_in()


def test_late_file_of_an_empty_interval_fails(job):
    job.write(0, 2)
    for number in range(2):
        job.take_in(interval=days(number, number + 1))
    job.write(1)
    with pytest.raises(
        SourceError, match=rf"the first is {day_name(1)}.*backfill purchases --from 2024-03-02 --to 2024-03-03"
    ):
        job.take_in(interval=days(2, 3))


def test_late_file_of_the_first_interval_fails(job):
    job.take_in(interval=days(0, 1))
    job.write(0, 1)
    with pytest.raises(SourceError, match=day_name(0)):
        job.take_in(interval=days(1, 2))


def test_files_before_the_first_interval_are_not_late(job):
    job.write(0, 1, 2, 3)
    job.take_in(interval=days(2, 3))
    assert job.take_in(interval=days(3, 4)) == [day_name(3)]
    job.write(-1)
    assert job.take_in(interval=days(4, 5)) == []
    assert job.names() == [digests(0, 1, 2), digests(3), digests(-1)]


def test_files_of_this_interval_are_not_late(job):
    job.write(0, 1, 5)
    assert job.take_in(interval=days(0, 1)) == [day_name(0)]
    job.write(2, 3)
    assert job.take_in(interval=days(1, 3)) == [day_name(1), day_name(2)]


def test_replay_takes_the_late_file_in(job):
    job.write(0, 2)
    for number in range(3):
        job.take_in(interval=days(number, number + 1))
    job.write(1)
    del job.lineage[1:]
    job.facts = job.lineage[-1].sources["purchases"]
    assert job.take_in(interval=days(1, 2)) == [day_name(1)]
    assert job.take_in(interval=days(2, 3)) == [day_name(2)]


def test_slice_ends_at_the_given_file(job):
    job.write(0, 1, 2)
    assert job.take_in(until=day_name(1)) == [day_name(0), day_name(1)]
    assert job.take_in(until=day_name(1)) == []


def test_interval_needs_a_pattern(job):
    job.home.configure({"sources": {"purchases": {"interval": None}}})
    job.write(0)
    with pytest.raises(ConfigError, match="no 'interval' pattern"):
        job.take_in(interval=days(0, 1))


@pytest.mark.parametrize(
    ("pattern", "stem", "end"),
    [
        ("%Y-%m-%dT%H%M", "2024-03-01T0510", "2024-03-01T05:11Z"),
        ("%Y-%m-%dT%H", "2024-03-01T05", "2024-03-01T06:00Z"),
        ("%Y-%m-%d", "2024-02-29", "2024-03-01"),
        ("%Y-%j", "2024-060", "2024-03-01"),
        ("%Y-%m", "2024-02", "2024-03-01"),
        ("%Y-%m", "2024-12", "2025-01-01"),
        ("%Y", "2024", "2025-01-01"),
    ],
)
def test_file_interval_follows_its_pattern(job, pattern, stem, end):
    job.home.configure({"sources": {"purchases": {"interval": pattern}}})
    write_rows(job.home.input, f"{stem}.parquet", [])
    assert timestamp_text(job.plan().interval.end) == end


def test_invalid_times_are_null(job):
    rows = purchases_of(0, rows=4)
    write_rows(job.home.input, day_name(0), rows[::-1])
    (file,) = job.source.plan(NO_FACTS, Want()).files
    assert job.source.event_times(file).to_pylist() == [row["at"] if row["customer"] else None for row in rows]
    good = {"customer": ["c", "c"], "item": [rows[0]["item"]] * 2, "cents": [1, 1], "seq": [2, 1], "kind": ["+I", "+I"]}
    for changed, times in [
        ({"at": ["yesterday", "today"]}, [None, None]),
        ({"at": pa.array([1 << 62, 5], pa.int64())}, [5, None]),
        ({"at": [7, 5], "cents": [None, 1]}, [5, None]),
    ]:
        pq.write_table(pa.table({**good, **changed}), job.home.input / day_name(0))
        assert job.source.event_times(file).to_pylist() == times
    pq.write_table(pa.table({"at": [7, 5]}), job.home.input / day_name(0))  # a column is missing
    assert job.source.event_times(file).to_pylist() == [None, None]


def test_missing_partly_read_file_fails(job):
    job.write(0, 1)
    job.facts = SourceFacts(position=FolderPosition(day_name(0), (day_name(0),), 3))
    job.remove(0)
    with pytest.raises(SourceError, match=rf"{day_name(0)} of .* is gone, and not all of its rows were taken in"):
        job.take_in()


# ---------------------------------------------------------------------------------------------- names and listings


def make_file(folder, name):
    (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).touch()


def test_name_that_is_not_utf8_is_refused(job):
    job.write(0)
    make_file(job.home.input, b"2024-03-02-\xff.parquet")
    with pytest.raises(
        SourceError, match=r"the name of .*/2024-03-02-\\xff\.parquet is not UTF-8.*Rename it"
    ) as caught:
        job.plan()
    assert caught.value.exit_code == 7
    str(caught.value).encode()


@pytest.mark.parametrize("name", [b"notes-\xff.txt", b"_half-\xff.parquet", b".\xff.parquet"])
def test_ignored_files_may_have_any_name(job, name):
    job.write(0)
    make_file(job.home.input, name)
    assert [file.name for file in job.plan().files] == [day_name(0)]


def test_folder_that_cannot_be_listed_is_named(job):
    def refuse(step, path):
        if step == "list":
            raise OSError(5, "Input/output error", path)

    node = plan_of(job.home.config().code).sources[0]
    config = replace(job.home.config().sources["purchases"], path="memory://unlisted/input")
    disk = memory_disk("unlisted")
    Storage("memory://unlisted/input/a.parquet").write("", b"")
    with disk.failing(refuse), pytest.raises(SourceError, match=r"cannot list memory://unlisted/input: .*Input/output"):
        FolderSource(node, config, Storage("")).listed(TakenIn())
    forget_disk("unlisted")
