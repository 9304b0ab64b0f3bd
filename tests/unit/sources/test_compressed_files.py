"""Packed files are read whole, or refused: no reader takes a part of one for the whole."""

from __future__ import annotations

import bz2
import gzip
import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.config import FileOptions
from headrace.sources.folder.format import HEAD
from headrace.sources.folder.formats import format_of
from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk, memory_disk
from tests.unit.sources.source_reading import read_bytes
from tests.unit.support.fuzzing import examples


class Row(Struct, frozen=True):
    id: str
    at: Timestamp


def zstd(content):
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(content)
    return packed.getvalue().to_pybytes()


PACKERS = {"gz": lambda content: gzip.compress(content, mtime=0), "zst": zstd, "bz2": bz2.compress}
CONTENTS = {
    "csv": (b"id,at\n", b"a,1\n", b"b,2\n"),
    "tsv": (b"id,at\n", b"a,1\n", b"b,2\n"),
    "json": (b"", b'{"id":"a","at":1}\n', b'{"id":"b","at":2}\n'),
    "jsonl": (b"", b'{"id":"a","at":1}\n', b'{"id":"b","at":2}\n'),
    "ndjson": (b"", b'{"id":"a","at":1}\n', b'{"id":"b","at":2}\n'),
}
ROWS = [Row("a", 1), Row("b", 2)]


def kind_of(suffix):
    return "csv" if suffix in {"csv", "tsv"} else "json"


def outcome_of(suffix, ending, packed):
    return read_bytes(kind_of(suffix), packed, Row, suffix=f"{suffix}.{ending}")


@pytest.mark.parametrize("ending", [*PACKERS, "GZ", "Zst", "BZ2"])
@pytest.mark.parametrize("suffix", CONTENTS)
def test_packed_files_are_read(suffix, ending):
    packed = PACKERS[ending.lower()](b"".join(CONTENTS[suffix]))
    outcome = outcome_of(suffix, ending, packed)
    assert (outcome.records, outcome.errors, outcome.refused) == (ROWS, {}, None)


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_members_that_follow_each_other_are_read(suffix, ending):
    pack = PACKERS[ending]
    first, *rest = CONTENTS[suffix]
    assert outcome_of(suffix, ending, b"".join(map(pack, (first, *rest)))).records == ROWS
    halves = (first + rest[0][:2], b"", rest[0][2:] + rest[1], b"")
    assert outcome_of(suffix, ending, b"".join(map(pack, halves))).records == ROWS


@pytest.mark.parametrize("ending", PACKERS)
def test_many_members_are_read(ending):
    lines = [b'{"id":"%d","at":%d}\n' % (number, number) for number in range(9_000)]
    outcome = outcome_of("json", ending, b"".join(map(PACKERS[ending], lines)))
    assert [record.at for record in outcome.records] == [*range(9_000)]


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACKERS)
def test_large_members_are_read(ending):
    content = b"".join(b'{"id":"%d","at":%d}\n' % (number * 7919, number) for number in range(100_000))
    assert len(outcome_of("json", ending, PACKERS[ending](content)).records) == 100_000


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("members", [1, 2])
def test_truncated_files_are_refused(ending, members):
    packed = PACKERS[ending](b"".join(CONTENTS["json"])) * members
    whole = len(packed) // members
    for size in range(len(packed)):
        outcome = outcome_of("json", ending, packed[:size])
        if members == 2 and size == whole:
            assert outcome.records == ROWS  # nobody can tell that a member is missing
        else:
            assert "cannot be unpacked by" in (outcome.refused or ""), size


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("rest", [b"x", b"\n", b'{"id":"c","at":3}\n' * 99, b"\x1f\x8b", b"BZh9", b"\x28\xb5\x2f\xfd"])
def test_bytes_behind_the_last_member_are_refused(ending, rest):
    outcome = outcome_of("json", ending, PACKERS[ending](b"".join(CONTENTS["json"])) + rest)
    assert "cannot be unpacked by" in (outcome.refused or "")


@pytest.mark.parametrize("ending", ["gz", "bz2"])
def test_zeros_behind_the_last_member_are_padding(ending):
    assert outcome_of("json", ending, PACKERS[ending](b"".join(CONTENTS["json"])) + bytes(5_000)).records == ROWS


def test_skippable_frames_of_zstd_are_skipped():
    skippable = struct.pack("<II", 0x184D2A50, 5) + b"hello"
    first, second = (zstd(line) for line in CONTENTS["json"][1:])
    content = skippable + first + skippable * 2 + second + skippable
    assert outcome_of("json", "zst", content).records == ROWS
    assert "cannot be unpacked by zstd" in (outcome_of("json", "zst", content[:-3]).refused or "")


@pytest.mark.parametrize("ending", PACKERS)
def test_files_that_are_not_packed_are_refused(ending):
    for content in (b"".join(CONTENTS["csv"]), b"\x00", b""):
        assert "cannot be unpacked by" in (outcome_of("csv", ending, content).refused or "")


@pytest.mark.parametrize("ending", PACKERS)
@examples(60)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_harmless(ending, data):
    packed = bytearray(PACKERS[ending](b"".join(CONTENTS["json"]) * 20))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    outcome = outcome_of("json", ending, bytes(packed))
    assert (
        outcome.refused is not None or outcome.records == ROWS * 20 or ending == "zst"
    )  # which need not have a checksum


def test_raw_deflate_is_no_gzip():
    packed = zlib.compress(b"".join(CONTENTS["csv"]))
    assert "cannot be unpacked by gzip" in (outcome_of("csv", "gz", packed).refused or "")


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("rows", [1, 20_000])
def test_check_reads_the_head_of_packed_files(ending, rows):
    content = b"id,at\n" + b"".join(b"%d,%d\n" % (number * 7919, number) for number in range(rows))
    assert rows == 1 or len(content) > HEAD
    uri, disk = "memory://packed-heads/input/file.csv." + ending, memory_disk("packed-heads")
    Storage(uri).write("", b"")
    disk.files[f"input/file.csv.{ending}"].content = PACKERS[ending](content)
    try:
        assert format_of(FileOptions(format="csv")).schema(Storage(uri)).names == ["id", "at"]
    finally:
        forget_disk("packed-heads")
