"""A job with files per day whose one source has a Spark transform, beside a plain source. The step is one in Python (no JVM)."""

from __future__ import annotations

import pyarrow as pa
from deltalake import write_deltalake

from headrace import Pipeline
from headrace.plan.loader import plan_of
from headrace.sources.registry import read_rows_of
from headrace.sources.transformed.rows import DimensionTables, columns_of_rows, transform_input
from headrace.sources.transformed.source import write_derived
from headrace.storage.storage import Storage
from tests.unit.support.backfilled_job import BackfilledJob
from tests.unit.support.branched_job import Order, Totals

SCHEMA = pa.schema([("customer", pa.string()), ("at", pa.timestamp("us", "UTC")), ("amount", pa.int64())])


def stepped_totals():
    """Return the pipeline of `BranchedJob` over the union of a source with a step and a plain one."""
    pipeline = Pipeline("shop")
    stepped = pipeline.source("orders", Order, event_time="at").sql("select ...", record=Order, tables=("prices",))
    plain = pipeline.source("others", Order, event_time="at")
    results = stepped.union(plain).key_by("customer").process("totals", Totals())
    results.side("small", Order).sink("small")
    results.upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",)).sink("totals")
    return pipeline


class Prices:
    """A Python step: it adds 100 times the version of the table to amounts; an amount of 5 or more gives two rows.

    `versions` has the version that the rows of each file were first made with; with `are_fixed`, all rows are made with these.
    """

    def __init__(self, config, versions, *, are_fixed):
        self.node, self.config = plan_of(config.code).sources[0], config
        self.tables = DimensionTables("orders", {"prices": config.sources["orders"].tables["prices"]}, Storage(""))
        self.versions, self.are_fixed = versions, are_fixed

    def digest(self):
        return "00000001"

    def derive(self, files, origin):
        for path, file in files.items():
            version = self.versions.setdefault(file.name, origin.tables["prices"])
            if not self.are_fixed:
                version = origin.tables["prices"]
                self.tables.read("prices", version)
            rows = read_rows_of(file, self.node.stored, Storage(""))
            checked = columns_of_rows(self.node.stored, rows)
            result = [
                row | {"amount": row["amount"] and row["amount"] + 100 * version}
                for row in transform_input(checked.columns, checked.kinds, self.node.stored).to_pylist()
                for _ in range(1 + (row["amount"] >= 5))
            ]
            write_derived(Storage(path), pa.Table.from_pylist(result, SCHEMA).to_batches(), SCHEMA, origin=origin)


class SteppedBackfilledJob(BackfilledJob):
    """The job of `BackfilledJob` with the sources "orders", which has a step that reads the table "prices", and "others"."""

    def __init__(self, *, versions=None, **options):
        bound = {"orders": {"tables": {"prices": "prices"}}}
        super().__init__(stepped_totals(), sources=("orders", "others"), bound=bound, **options)
        self.versions, self.are_fixed = versions or {}, versions is not None
        self.change_prices()

    def change_prices(self):
        """Commit a version of the table."""
        write_deltalake(str(self.harness.folder / "prices"), pa.table({"id": [1]}), mode="append")

    def labels(self, branch=None):
        """Return the version of the table that the total of each customer was made with."""
        rows = self.content(branch)["sink totals"]
        return {row["customer"]: row["amount"] // 100 for row in map(dict, rows)}

    def inputs(self, config):
        return {"steps": {"orders": Prices(config, self.versions, are_fixed=self.are_fixed)}}

    def beside(self):
        """Return a job without input that makes rows with the versions that this job made them with first."""
        return SteppedBackfilledJob(versions=self.versions)
