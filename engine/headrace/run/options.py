"""Options of a run, events while it works, and the report at its end."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.log.facts import RowTimes
from headrace.log.warnings import RunWarning, WatermarkWait
from headrace.sources.interval import Interval

Mode = Literal["auto", "caught_up", "interval", "backfill"]
Intervals = tuple[tuple[int, int], ...]
"""Start (inclusive) and end (exclusive) of each interval (ms)."""

StoppedBecause = Literal["drained", "budget", "max_batches", "interval", "done", "terminated", "finished", "ended"]
"""Why a run ended. done: its interval had been taken in before, with the same input."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one run. None always means: as the job's configuration says."""

    run_id: str
    """Id of the run in checkpoints, leases and logs."""

    mode: Mode = "auto"
    """auto: as the job says. caught_up: until drained. interval: the files of one interval.
    backfill: on a branch, an interval and all later input of the job."""

    interval_start: int | None = None
    """Start of the interval (ms, inclusive)."""

    interval_end: int | None = None
    """End of the interval (ms, exclusive)."""

    recompute: int | None = None
    """Somebody asked at this time (ms) to compute the interval again: only what was committed later counts as done. None: nobody did."""

    fill: bool = False
    """Take in missing intervals before the one of the run, whatever the job's file says (`run.gaps`)."""

    allow_effects: bool = False
    """On a branch, also call services that the job's file marks with `effects`."""

    beyond_limits: bool = False
    """Begin a backfill also if its plan goes beyond the limits of the job's file (`replay.max_calls`, `replay.max_minutes`)."""

    budget: float | None = None
    """Seconds after which no new micro-batch starts, and the present one holds elements not begun yet."""

    max_batches: int | None = None
    """Number of micro-batches after which the run ends."""

    finish: bool = False
    """At the end, call services for the last time for all waiting elements."""

    end_of_input: bool = False
    """Take in all input, call services for the last time, and move the watermark to the end of time."""

    parallelism: int | None = None
    """Number of tasks per operator."""

    backend: Literal["rocksdb", "hashmap", "delta"] | None = None
    """State backend."""

    async_state: bool | None = None
    """Allow accesses to state to overlap, in every operator."""

    cluster: str | None = None
    """Cluster profile."""

    force_fail_over: bool = False
    """Take the job from another run before its lease ends. The other run then fails to commit."""


class Event(msgspec.Struct, frozen=True):
    """Event of a run, for progress displays and logs."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a sink at the end of a run."""

    rows: int
    """Number of rows that all attempts of the run gave to the sink."""

    version: int | None = None
    """Delta version of its table; None if it cannot be read."""

    checkpoint: int | None = None
    """Last checkpoint that was published to it; None without one, or if its table cannot be read."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a run."""

    job: str
    run_id: str
    checkpoints: list[int]
    """Ids of the checkpoints that the run committed, in order."""

    rows_in: int
    rows_out: int
    seconds: float
    stopped_because: StoppedBecause | None
    """None where the report was read from checkpoints, which do not say it."""
    quarantined: int
    responses_taken: int = 0
    """On a branch, number of elements that took the kept response of the live lineage, without a call."""

    waiting: int = 0
    """Number of elements that wait for services at the end of the run."""

    checkpoint: int | None = None
    """Last checkpoint of the job, from this run or an earlier one."""

    watermark: int | None = None
    """Watermark of the last checkpoint (ms)."""

    interval_start: int | None = None
    """Start of the interval that the run was for, else of the one that the job has taken in last (ms, inclusive)."""

    interval_end: int | None = None
    """End of that interval (ms, exclusive)."""

    intervals: Intervals = ()
    """Intervals whose rows an interval run has published whole, in order: its own, missing ones that it filled in, and one that it has finished."""

    sinks: dict[str, SinkReport] = {}
    """By sink."""

    row_times: dict[str, RowTimes] = {}
    """Late rows, and rows too far ahead, by operator or source; only of those that have such rows. Those of the run before
    as well, if that died before its report."""

    watermark_waits: tuple[WatermarkWait, ...] = ()
    """Watermarks that timers of event time wait for at the end of the run, and the rows that are missing to their next steps."""

    warnings: tuple[RunWarning, ...] = ()
    """Facts that somebody has to know although the run succeeded. A run with any of them is degraded."""

    pending: Interval | None = None
    """From the first to the last interval of which a promotion of another job has corrected the input, after this job took it in."""
