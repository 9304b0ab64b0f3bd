"""Which kind of sink a job's file names."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from headrace.config import JobConfig
from headrace.sinks.delta_table import DeltaTableSink
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.parquet_folder import ParquetFolderSink
from headrace.sinks.sink import NO_WRITERS, SparkWriters

_KINDS: Final = {"delta": DeltaTableSink, "parquet": ParquetFolderSink, "kafka": KafkaSink}


def sink_of(
    config: JobConfig,
    name: str,
    schema: pa.Schema | None = None,
    keys: tuple[str, ...] = (),
    writers: SparkWriters = NO_WRITERS,
) -> DeltaTableSink:
    """Return a sink of a job, of the format that its file names. Who only asks what was published needs no schema. Nothing is read."""
    return _KINDS[config.sinks[name].format].of(config, name, schema, keys, writers)
