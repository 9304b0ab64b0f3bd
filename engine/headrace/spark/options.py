"""What a run is asked for, what it tells while it works, and what it reports at its end."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Mode = Literal["auto", "caught_up", "interval", "backfill"]
StoppedBecause = Literal["drained", "budget", "max_batches", "interval", "terminated", "finished", "ended"]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One run's wishes. None always means: as the job's configuration says."""

    run_id: str
    """Names the run in checkpoints, leases and logs. A retry of the same run has the same id."""

    mode: Mode = "auto"
    """auto: as the job says. caught_up: until drained. interval: the files of one interval.
    backfill: on a branch, an interval and all that the job has taken in behind it."""

    interval_start: int | None = None
    """Start of the interval (ms, inclusive)."""

    interval_end: int | None = None
    """End of the interval (ms, exclusive)."""

    replay: bool = False
    """Run an interval that was taken in already again, and with it all later ones."""

    allow_effects: bool = False
    """On a branch, call services that the job's file marks with `effects`, too."""

    budget: float | None = None
    """Seconds after which no new micro-batch starts, and the present one holds what has not begun."""

    max_batches: int | None = None
    """Micro-batches after which the run ends."""

    finish: bool = False
    """At the end, call for the last time for all that waits for services."""

    end_of_input: bool = False
    """Take in all there is, call for the last time for all that waits, and move the watermark to the end of time."""

    parallelism: int | None = None
    """Tasks per operator."""

    backend: Literal["rocksdb", "hashmap", "delta"] | None = None
    """State backend."""

    async_state: bool | None = None
    """Whether state accesses may overlap, in every operator."""

    cluster: str | None = None
    """Cluster profile."""

    force_fail_over: bool = False
    """Take the job from another run before its lease ends. That run will fail to commit."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened in a run, for progress displays and logs."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sink stands at the end of a run."""

    rows: int
    """Rows that the run gave to it, all attempts of the run together."""

    version: int | None = None
    """The Delta version of its table; None if it cannot be read."""

    checkpoint: int | None = None
    """The last checkpoint that was published to it; None if none was, or its table cannot be read."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    job: str
    run_id: str
    checkpoints: list[int]
    """Ids of the checkpoints that it committed, in order."""

    rows_in: int
    rows_out: int
    seconds: float
    stopped_because: StoppedBecause
    quarantined: int
    waiting: int = 0
    """Elements that wait for services at its end."""

    checkpoint: int | None = None
    """The job's last checkpoint, of this run or of an earlier one."""

    watermark: int | None = None
    """The watermark of that checkpoint (ms)."""

    interval_start: int | None = None
    """The start of the interval that it has taken in last (ms, inclusive)."""

    interval_end: int | None = None
    """The end of that interval (ms, exclusive)."""

    sinks: dict[str, SinkReport] = {}
    """By sink."""
