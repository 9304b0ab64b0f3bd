"""Printed statements that delete a key's rows from sinks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.edits.erase_survey import SinkRows

KEYS = ("plain", "a\\b", "it's", 'say "x"', "two\nlines", "tab\t", "`tick`", "\\", "'", "a\\' OR 1=1 --")


def rows_of(folder, key):
    return SinkRows("board", str(folder), "merge", ("Id",), [({"Id": key, "order": 7}, 1)])


@pytest.mark.parametrize("key", KEYS)
def test_printed_call_of_deltalake_deletes_the_key(tmp_path, key):
    folder = tmp_path / "it's"
    write_deltalake(folder, pa.table({"Id": [*KEYS, key], "order": [*[7] * len(KEYS), 8]}))
    eval(rows_of(folder, key).delta_rs_call, {"DeltaTable": DeltaTable})  # noqa: S307 - the text is what the command prints
    left = DeltaTable(folder).to_pyarrow_table()
    assert sorted(left["Id"].to_pylist()) == sorted(KEYS)
    assert (key, 7) not in zip(left["Id"].to_pylist(), left["order"].to_pylist(), strict=True)


@pytest.mark.parametrize(
    ("key", "literal"),
    [("a\\b", r"'a\\b'"), ("it's", r"'it\'s'"), ("two\nlines", r"'two\nlines'"), ('say "x"', "'say \"x\"'")],
)
def test_printed_spark_statement_escapes_the_key(tmp_path, key, literal):
    assert (
        rows_of("/lake/board", key).statement
        == f"DELETE FROM delta.`/lake/board` WHERE `Id` = {literal} AND `order` = 7;"
    )
