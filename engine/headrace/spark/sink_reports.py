"""Positions of the sinks when a run ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.protocol import OpenJob
from headrace.spark.options import SinkReport


def sink_reports(job: OpenJob) -> dict[str, SinkReport]:
    """Return, for each sink, the rows that the run holding `job` gave to it, and the version of its table.

    Called at the end of a run, after its last commit. A sink that cannot be read has no version: its rows are committed, and the
    next run reads it again.
    """
    rows = _rows(checkpoint for checkpoint in job.checkpoints if checkpoint.run_id == job.run_id)
    standing = job.sink_standing()
    return {
        name: SinkReport(
            rows=rows[name],
            version=standing[name].version if name in standing else None,
            checkpoint=standing[name].checkpoint if name in standing else None,
        )
        for name in job.config.sinks
    }


def _rows(checkpoints: Iterable[Checkpoint]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for checkpoint in checkpoints:
        for sink, files in checkpoint.outputs.items():
            rows[sink] += sum(file.rows for file in files)
    return rows
