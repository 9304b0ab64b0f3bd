"""Delta tables whose files lie elsewhere, as shallow clones have them: absolute paths of data files and of deletion vectors."""

from __future__ import annotations

import shutil
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.config import SourceConfig
from headrace.edits.requeue import requeue
from headrace.errors import SourceError
from headrace.plan.loader import plan_of
from headrace.sources.delta.source import DeltaSource
from headrace.sources.position import NO_FACTS
from headrace.sources.source import Want
from headrace.storage.schemes import logged_path, place_of
from headrace.storage.storage import Storage
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.s3 import BUCKET
from tests.unit.support.table_job import TableJob, table

COLUMNS = [column("shop", "string"), column("at", "timestamp"), column("name", "string"), column("size", "long")]

FORMS = {
    "file:/": lambda path: f"file:{quote(str(path))}",
    "file:///": lambda path: path.as_uri(),
    "/": lambda path: quote(str(path)),
}


def clone(folder, form, **options):
    """A table whose first file lies in the folder of another one, whose name has a space and a percent sign."""
    written = HandTable(folder / "table", COLUMNS, features=["deletionVectors"], **options)
    first = written.add(table(*"pqr"))
    source = folder / "base 1%2F"
    source.mkdir()
    moved = shutil.move(written.path / "part-001.parquet", source / "part-001.parquet")
    first["add"]["path"] = FORMS[form](moved)
    return written, first, moved


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_files_elsewhere_are_read(tmp_path, form, start):
    written, first, _ = clone(tmp_path, form)
    written.commit(first, written.add(table("s")))
    job = TableJob(written, start=start, max_files_per_batch=1)
    assert sorted(job.took()) == [*"pqrs"]
    read = pa.RecordBatchReader.from_stream(DeltaTable(str(written.path)).scan(columns=["name"])).read_all()
    assert sorted(read["name"].to_pylist()) == [*"pqrs"]


@pytest.mark.parametrize("form", ["one", "sidecars"])
def test_absolute_paths_in_a_checkpoint_are_read(tmp_path, form):
    written, first, _ = clone(tmp_path, "file:/")
    written.commit(first)
    written.commit(written.add(table("s")))
    written.log_checkpoint(form)
    written.forget(2)
    assert sorted(TableJob(written, start="snapshot").took()) == [*"pqrs"]


@pytest.mark.parametrize("storage", ["u", "p"])
def test_rows_deleted_in_a_clone_are_changes(tmp_path, storage):
    written, first, _ = clone(tmp_path, "file:/")
    written.commit(first)
    second = {"add": {**first["add"], "deletionVector": written.vector([1], storage)}}
    written.commit(written.remove(first), second, operation="DELETE")
    # Spark writes the path of a file that it removes in another form than that of one that it adds.
    second["add"]["path"] = second["add"]["path"].replace("file:/", "file:///")
    written.commit(written.remove(second), written.add(table("x")), operation="UPDATE")
    job = TableJob(written, on_change="as_changes")
    assert job.took() == ["p", "q", "r", "-Dq", "-Dp", "-Dr", "x"]
    assert TableJob(written, start="snapshot").took() == ["x"]


def test_missing_file_of_the_source_is_named(tmp_path):
    written, first, moved = clone(tmp_path, "file:///")
    written.commit(first)
    moved.unlink()
    with pytest.raises(SourceError, match=r"/base 1%2F/part-001\.parquet is gone. Version 1 of the table needs it"):
        TableJob(written).run()


@pytest.mark.parametrize(
    "place", ["dbfs:/x/part.parquet", "abfss://c@a.dfs.core.windows.net/part.parquet", "file://h/p"]
)
def test_other_schemes_are_refused_by_name(tmp_path, place):
    written, first, _ = clone(tmp_path, "/")
    first["add"]["path"] = place
    written.commit(first)
    for start in ("earliest", "snapshot"):
        with pytest.raises(SourceError, match=rf"files of a scheme that is not supported \({place}\)"):
            TableJob(written, start=start).run()


def test_vector_of_another_scheme_is_refused(tmp_path):
    written = HandTable(tmp_path / "table", COLUMNS, features=["deletionVectors"])
    vector = {**written.vector([1]), "storageType": "p", "pathOrInlineDv": "dbfs:/x/vector.bin"}
    written.commit(written.add(table(*"pq"), vector))
    with pytest.raises(SourceError, match=r"files of a scheme that is not supported \(dbfs:/x/vector\.bin\)"):
        TableJob(written).run()


@pytest.mark.parametrize(
    ("uri", "path", "place"),
    [
        ("part%20a.parquet", "part a.parquet", "s3://b/t/part a.parquet"),
        ("d=a%253A/p.parquet", "d=a%3A/p.parquet", "s3://b/t/d=a%3A/p.parquet"),
        ("s3a://c/x%20y", "s3a://c/x y", "s3a://c/x y"),
        ("file:/a%2520b/c", "/a%20b/c", "/a%20b/c"),
        ("file:///a/b", "/a/b", "/a/b"),
        ("/a/b", "/a/b", "/a/b"),
        ("file://host/a", "file://host/a", None),
        ("gs://b/x", "gs://b/x", None),
    ],
)
def test_places_of_paths_in_a_log(uri, path, place):
    assert logged_path(uri) == path
    assert place_of(path, "s3://b/t") == place


def test_bad_row_elsewhere_is_requeued_by_its_place(tmp_path):
    written, first, moved = clone(tmp_path, "file:/")
    rows = table("p", "q")
    pq.write_table(rows.set_column(2, "name", pa.array(["p", None])), moved)
    written.commit(first)
    job = TableJob(written)
    assert job.took() == ["p"]
    place = (f"00000000000000000001/add/{moved}:1", "name is null")
    assert job.quarantine() == [place]
    requeue(job.harness.config, "again")
    assert (job.took(), job.quarantine()) == ([], [place])


def test_places_on_object_stores_are_read(storage, tmp_path):
    written, first, moved = clone(tmp_path, "/")
    vector = written.vector([0])
    first["add"] |= {"path": f"s3a://{BUCKET}/{tmp_path.name}/base%201/p.parquet", "deletionVector": vector}
    name = next(written.path.glob("*.bin")).name
    first["add"]["deletionVector"] |= {
        "storageType": "p",
        "pathOrInlineDv": f"s3://{BUCKET}/{tmp_path.name}/base%201/{name}",
    }
    written.commit(first, written.add(table("s")))
    uri = f"s3://{BUCKET}/{tmp_path.name}"
    for file in [path for path in written.path.rglob("*") if path.is_file()]:
        below = "base 1" if file.name == name else "table"
        Storage(uri, storage).write(f"{below}/{file.relative_to(written.path)}", file.read_bytes())
    Storage(uri, storage).write("base 1/p.parquet", moved.read_bytes())
    place = Storage(f"{uri}/table", storage)
    job = TableJob(written)
    node = plan_of(job.harness.config.code).sources[0]
    source = DeltaSource(node, SourceConfig(path=place.uri, format="delta"), place)
    files = source.plan(NO_FACTS, Want()).files
    names = [name for file in files for name in source.read(file, node, place).table["name"].to_pylist()]
    assert (names, [source.rows(file) for file in files]) == (["s", "q", "r"], [1, 2])


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_vector_without_a_name_makes_a_bad_file(tmp_path, start):
    written = HandTable(tmp_path / "table", COLUMNS, features=["deletionVectors"])
    written.commit(written.add(table(*"pq"), {**written.vector([1]), "pathOrInlineDv": "é" * 20}))
    with pytest.raises(SourceError, match=r"which is no name of a file.*on_bad_file: quarantine"):
        TableJob(written, start=start).run()
    job = TableJob(written, start=start, on_bad_file="quarantine", max_quarantined="none")
    assert job.took() == []
