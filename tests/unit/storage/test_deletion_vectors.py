"""Deletion vectors give back the rows that were written, or say what is wrong with them."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.deletion_vectors import DamagedVectorError, DeletionVector, MissingVectorError
from headrace.storage.files import Files
from tests.unit.sources.hand_table import HandTable, column, encoded, z85
from tests.unit.support.fuzzing import examples

EDGES = [0, 1, 65535, 65536, 131071, 2**32 - 1, 2**32, 2**33 + 5]
ROWS = st.sets(st.sampled_from(EDGES) | st.integers(0, 400_000), max_size=60)


@pytest.fixture
def table(tmp_path):
    return HandTable(tmp_path / "table", [column("id", "long")])


def rows_of(table, description):
    return DeletionVector.of(description).rows(Files(str(table.path))).tolist()


@examples(60)
@given(rows=ROWS, ranges=st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 70_000)), max_size=2))
@pytest.mark.parametrize("form", ["plain", "runs"])
def test_rows_of_any_shape_come_back(form, rows, ranges):
    wanted = sorted(rows.union(*(range(first, first + count) for first, count in ranges)))
    content = encoded(wanted, form)
    vector = DeletionVector("i", z85(content), len(content), len(wanted))
    assert vector.rows(Files("")).tolist() == wanted


@pytest.mark.parametrize(("storage", "folder"), [("u", ""), ("u", "ab"), ("p", ""), ("i", "")])
def test_each_storage_type_is_read(table, storage, folder):
    first = table.vector([3, 5], storage, folder=folder)
    second = table.vector([70_000], storage, folder=folder)
    assert (rows_of(table, first), rows_of(table, second)) == ([3, 5], [70_000])


def test_name_in_the_protocol_is_decoded():
    vector = DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    assert vector.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_missing_file_is_named(table):
    described = table.vector([1])
    next(table.path.glob("*.bin")).unlink()
    with pytest.raises(MissingVectorError, match=r"table/deletion_vector_.*\.bin is gone"):
        rows_of(table, described)


def changed(table, at, byte):
    path = next(table.path.glob("*.bin"))
    content = bytearray(path.read_bytes())
    content[at] ^= byte
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "match"),
    [(1, "is cut off, or is not the deletion vector of 38 bytes"), (20, "its checksum"), (-1, "its checksum")],
)
def test_changed_byte_is_damage(table, at, match):
    described = table.vector([1, 2, 3])
    changed(table, at, 0x10)
    with pytest.raises(DamagedVectorError, match=match):
        rows_of(table, described)


def test_file_cut_off_is_damage(table):
    described = table.vector([1, 2, 3])
    path = next(table.path.glob("*.bin"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedVectorError, match="is cut off"):
        rows_of(table, described)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"storageType": "x"}, "the storage type 'x', which is not known"),
        ({"pathOrInlineDv": "short"}, "'short', which is no name of a file"),
        ({"cardinality": 9}, "deletes 9 rows, and it has 2"),
    ],
)
def test_wrong_description_is_named(table, change, match):
    described = table.vector([1, 2]) | change
    with pytest.raises(DamagedVectorError, match=match):
        rows_of(table, described)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (struct.pack("<I", 1681511376), "in the format 'native', which is not read"),
        (struct.pack("<I", 17), "in a format that is not known"),
        (b"ab", "is damaged"),
        (encoded([1, 2])[:-2], "is damaged: it ends after 34 bytes"),
        (struct.pack("<IQII", 1681511377, 1, 0, 99), "a bitmap begins with 99"),
        (struct.pack("<IQIII", 1681511377, 1, 0, 12346, 2**32 - 1), "it ends after"),
    ],
)
def test_wrong_bytes_are_named(table, content, match):
    (table.path / "wrong.bin").write_bytes(len(content).to_bytes(4) + content + zlib.crc32(content).to_bytes(4))
    with pytest.raises(DamagedVectorError, match=match):
        DeletionVector("p", str(table.path / "wrong.bin"), len(content), 2).rows(Files(""))


@given(content=st.binary(max_size=80))
def test_any_bytes_give_rows_or_an_error(content):
    begin = struct.pack("<IQII", 1681511377, 1, 0, 12347)
    vector = DeletionVector("i", z85(begin + content), len(begin + content), 1)
    with suppress(DamagedVectorError):
        assert len(vector.rows(Files(""))) == 1
