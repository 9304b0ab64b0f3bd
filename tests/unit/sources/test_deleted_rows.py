"""Rows that a deletion vector deletes are no rows of a source, on any path, and whatever the micro-batches are."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.fuzzing import examples
from tests.unit.support.table_job import TableJob, table

COLUMNS = [column("shop", "string"), column("at", "timestamp"), column("name", "string"), column("size", "long")]


@pytest.fixture
def written(tmp_path):
    return HandTable(tmp_path / "table", COLUMNS, features=["deletionVectors"])


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("storage", ["u", "p", "i"])
def test_deleted_rows_are_no_rows(written, start, storage):
    written.commit(written.add(table(*"pqrst"), written.vector([0, 3], storage)), written.add(table("u")))
    job = TableJob(written, start=start)
    assert job.took() == ["q", "r", "t", "u"]
    written.commit(written.add(table("v", "w"), written.vector([0, 1], storage)))
    assert job.took() == []


def test_new_vector_of_a_file_is_a_change(written):
    first = written.add(table(*"pqr"))
    written.commit(first)
    second = written.again("part-001.parquet", written.vector([1]))
    written.commit(written.remove(first), second, operation="DELETE")
    job = TableJob(written)
    with pytest.raises(SourceError, match=r"version 2 of .* \(DELETE\) removes or rewrites rows"):
        job.run()
    assert job.arrived() == ["p", "q", "r"]
    assert TableJob(written, start="snapshot").took() == ["p", "r"]


def test_purge_of_deleted_rows_changes_nothing(written):
    first = written.add(table(*"pqr"), written.vector([1]))
    written.commit(first)
    written.commit(
        written.remove(first, data_change=False), written.add(table("p", "r"), data_change=False), operation="REORG"
    )
    written.commit(written.add(table("s")))
    assert TableJob(written).took() == ["p", "r", "s"]
    assert TableJob(written, start="snapshot").took() == ["p", "r", "s"]


def test_file_added_again_is_no_change(written):
    first = written.add(table(*"pq"), written.vector([1]))
    written.commit(first)
    written.commit(written.remove(first), first, operation="COMPUTE STATS")
    written.commit(written.add(table("r")))
    assert TableJob(written).took() == ["p", "r"]


def test_vectors_of_a_log_checkpoint_are_read(written):
    first = written.add(table(*"pqr"), written.vector([1]))
    written.commit(first, written.add(table("s"), written.vector([0], "i")))
    written.commit(written.add(table("t")))
    DeltaTable(str(written.path)).create_checkpoint()
    for version in (0, 1):
        (written.path / f"_delta_log/{version:020d}.json").unlink()
    assert TableJob(written, start="snapshot").took() == ["p", "r", "t"]


@pytest.mark.parametrize("on_bad_file", ["fail", "quarantine"])
def test_missing_vector_is_never_skipped(written, on_bad_file):
    written.commit(written.add(table(*"pqr"), written.vector([1])))
    next(written.path.glob("*.bin")).unlink()
    job = TableJob(written, on_bad_file=on_bad_file)
    with pytest.raises(
        SourceError, match=r"\.bin is gone: it says which rows of .*part-001.parquet are deleted"
    ) as caught:
        job.run()
    assert "VACUUM" not in str(caught.value)
    assert str(caught.value).endswith("sources.rows.skip_versions: 1")


def damaged(written):
    written.commit(written.add(table(*"pqr"), written.vector([1])))
    path = next(written.path.glob("*.bin"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_damaged_vector_makes_a_bad_file(written):
    damaged(written)
    with pytest.raises(SourceError, match=r"part-001\.parquet.*\.bin at byte 1 is damaged: its checksum"):
        TableJob(written).run()
    job = TableJob(written, on_bad_file="quarantine")
    assert job.took() == []
    assert "checksum" in str(job.quarantine())


def test_row_beyond_the_file_is_damage(written):
    written.commit(written.add(table("p"), written.vector([7])))
    with pytest.raises(SourceError, match="deletes row 7, and the file has 1"):
        TableJob(written).run()


def test_bad_rows_are_numbered_without_deleted_ones(written):
    rows = table("p", "q", "r").drop(["name"]).append_column("name", [["p", "q", None]])
    written.commit(written.add(rows.select(["shop", "at", "name", "size"]), written.vector([0])))
    job = TableJob(written)
    assert job.took() == ["q"]
    ((position, _),) = job.quarantine()
    assert position.endswith("/add/part-001.parquet:1")


FILES = st.lists(st.sets(st.integers(0, 5), max_size=6), min_size=1, max_size=4)


@pytest.mark.slow
@examples(15)
@given(
    versions=st.lists(FILES, min_size=1, max_size=3),
    limits=st.fixed_dictionaries(
        {"max_files_per_batch": st.integers(1, 3), "max_rows_per_batch": st.none() | st.integers(1, 4)}
    ),
    start=st.sampled_from(["earliest", "snapshot", "version 1"]),
)
def test_any_split_gives_the_rows_of_a_loop(tmp_path_factory, versions, limits, start):
    written = HandTable(tmp_path_factory.mktemp("split") / "table", COLUMNS, features=["deletionVectors"])
    expected = []
    for number, files in enumerate(versions):
        actions = []
        for at, deleted in enumerate(files):
            names = [f"{number}{at}{row}" for row in range(6)]
            actions.append(written.add(table(*names), written.vector(sorted(deleted)) if deleted else None))
            expected += [name for row, name in enumerate(names) if row not in deleted]
        written.commit(*actions)
    assert TableJob(written, start=start, **limits).took() == expected
