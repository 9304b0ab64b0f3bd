"""Mark of a job that is being dropped. No run, and no command that changes a job, opens a marked one.

A drop deletes a job's folder file by file, and may die at any point. The rest then looks like a damaged job, or like
no job at all, and the next run would start anew beside it. So a drop first writes a file `dropped.parquet` into the
folder, and deletes that file last.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.tables.files import read_parquet, stage
from headrace.tables.store import storage_errors

MARKER = "dropped.parquet"
"""Name of the file in the job's folder."""


@dataclass(frozen=True, slots=True)
class DropMarker:
    """Reason why a job is dropped, the tables of its sinks that are deleted with it, by sink, and its uid."""

    why: str
    sinks: dict[str, str]
    uid: int | None = None
    """None in marks of earlier releases, and for a job without checkpoints."""


def read_marker(config: JobConfig) -> DropMarker | None:
    """Return the mark of a job; None if nobody is dropping it."""
    uri = f"{config.job_folder}/{MARKER}"
    with storage_errors(f"to look for {uri}"):
        try:
            rows = read_parquet(uri, config.storage_options).to_pylist()
        except FileNotFoundError:
            return None
    sinks = {row["sink"]: row["uri"] for row in rows if row["sink"] is not None}
    return DropMarker(rows[0]["why"], sinks, rows[0].get("uid"))


def write_marker(config: JobConfig, marker: DropMarker) -> None:
    """Mark a job. Once the call returns, the mark survives a power failure."""
    common = {"why": marker.why, "uid": marker.uid}
    rows = [{**common, "sink": sink, "uri": uri} for sink, uri in marker.sinks.items()]
    schema = pa.schema([*((name, pa.string()) for name in ("why", "sink", "uri")), ("uid", pa.int64())])
    table = pa.Table.from_pylist(rows or [common], schema)
    stage(config.job_folder, MARKER, table, config.storage_options)


def refuse_dropped(config: JobConfig) -> None:
    """Raise `ConfigError` for a job that is being dropped."""
    marker = read_marker(config)
    if marker is not None:
        msg = (
            f"job '{config.job}' is being dropped ({marker.why}), and parts of {config.job_folder} may be gone. Nothing was "
            f"changed. Finish it: headrace drop {config.job} --apply --why ...; then a run begins anew."
        )
        raise ConfigError(msg)
