"""Partitioned sinks and sinks with an added column have the rows of a plain sink; Spark merges and reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.jobs.outcome import sink_rows
from tests.jobs.purchase_files import write_days

QUICK = {"parallelism": 2, "backend": "hashmap"}
PARTITIONS = {
    "publish": {"spark_above_rows": 0},
    "sinks": {"lines_by_item": {"partition_by": ["item", "idle"]}, "reminders": {"partition_by": ["customer"]}},
}


def ran(home, run):
    write_days(home.input, range(2))
    run(home, **QUICK)
    return {sink: sink_rows(home.config(), sink) for sink in home.config().sinks}


@pytest.mark.slow
def test_partitions_and_new_columns_change_no_row(home, new_home, run, spark):
    expected = ran(home, run)
    parted = new_home("parted")
    parted.configure(PARTITIONS)
    assert ran(parted, run) == expected
    for name, sink in parted.config().sinks.items():
        assert spark.read.format("delta").load(sink.path).count() == len(expected[name])
        count = spark.read.format("delta").load(sink.path).where("customer = 'customer 7'").count()
        assert (
            count
            == spark.read.format("delta").load(home.config().sinks[name].path).where("customer = 'customer 7'").count()
        )

    grown = new_home("grown")
    grown.configure({"publish": {"spark_above_rows": 0}})
    for name, sink in grown.config().sinks.items():
        schema = pa.schema(DeltaTable(home.config().sinks[name].path).schema())
        DeltaTable.create(sink.path, schema=schema.remove(schema.get_field_index("cents")))
    assert ran(grown, run) == expected
