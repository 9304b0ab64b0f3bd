"""Kinds of sinks, by their formats in a job's file."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from headrace.config import JobConfig
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.parquet import ParquetFolderSink
from headrace.sinks.sink import NO_WRITERS, SparkWriters

KINDS: Final = {"delta": DeltaTableSink, "parquet": ParquetFolderSink, "kafka": KafkaSink}


def sink_of(
    config: JobConfig,
    name: str,
    schema: pa.Schema | None = None,
    keys: tuple[str, ...] = (),
    writers: SparkWriters = NO_WRITERS,
) -> DeltaTableSink:
    """Make a sink of a job, of its format in the job's file. A caller that only asks for the last publication needs no schema.

    Read nothing.
    """
    return KINDS[config.sinks[name].format].of(config, name, schema, keys, writers)
