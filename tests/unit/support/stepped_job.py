"""A job whose source has a step, and a Python step in place of Spark's."""

from __future__ import annotations

import pyarrow as pa

from headrace import Pipeline, Struct, Timestamp
from headrace.sources.registry import read_rows_of
from headrace.sources.transformed.rows import DimensionTables, columns_of_rows, refused_rows, transform_input
from headrace.sources.transformed.source import write_derived
from headrace.storage.storage import Storage


class Order(Struct, frozen=True):
    name: str
    copies: int
    at: Timestamp


class Copy(Struct, frozen=True):
    name: str
    label: int
    at: Timestamp


SCHEMA = pa.schema([("name", pa.string()), ("label", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def pipeline(tables=("dims",)):
    result = Pipeline("shop")
    result.source("rows", Order, event_time="at").sql("select ...", record=Copy, tables=tables).sink("copies")
    return result


def order(name, copies, at):
    return {"name": name, "copies": copies, "at": at}


class Copies:
    """A Python step: each order gives several rows; the order "null" gives one that is refused.

    The label of a row is the version of the table, or 0 without a table.
    """

    def __init__(self, node, config, dims=None, digest="00000001"):
        self.node, self.config, self.name = node, config, digest
        self.tables = DimensionTables("rows", {} if dims is None else {"dims": str(dims)}, Storage(""))
        self.lands, self.dies_after = 0, None

    def digest(self):
        return self.name

    def derive(self, files, origin):
        stored = self.node.stored
        for path, file in files.items():
            if self.dies_after == self.lands:
                raise KeyboardInterrupt
            rows = read_rows_of(file, stored, Storage(""))
            checked = columns_of_rows(stored, rows)
            result = [
                {
                    "name": f"{row['name']}.{copy}",
                    "label": None if row["name"] == "null" else origin.tables.get("dims", 0),
                    "at": row["at"],
                }
                for row in transform_input(checked.columns, checked.kinds, stored).to_pylist()
                for copy in range(row["copies"])
            ]
            refused = refused_rows(rows, checked.bad, file.name)
            write_derived(
                Storage(path),
                pa.Table.from_pylist(result, SCHEMA).to_batches(),
                SCHEMA,
                refused=refused,
                doubtful=checked.doubtful,
                origin=origin,
            )
            self.lands += 1
