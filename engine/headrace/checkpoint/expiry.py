"""Which stored entries are dead, asked in SQL: for compaction, for rebuilding, and for people.

What counts is what the job declares now, not what it declared when a row was written: `expires_at` tells only that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from headrace.api import OnGap, StateTtl
from headrace.checkpoint._query import literal
from headrace.checkpoint.checkpoint import last_micro_batch
from headrace.checkpoint.ttl_history import Declared
from headrace.state.ttl import LiveTtl

if TYPE_CHECKING:
    from headrace.checkpoint._log import CheckpointLog
    from headrace.checkpoint.checkpoint import Checkpoint

NEVER = "false"
"""SQL for a table in which nothing expires."""


class Expiry(NamedTuple):
    """A state's TTL, and what its clock says (ms)."""

    operator: str
    state: str
    live: LiveTtl
    clock: int

    def is_dead(self) -> str:
        """SQL for rows of `keyed_state`: whether they belong to the state, and their time is up."""
        ours = f"operator = {literal(self.operator)} AND state = {literal(self.state)}"
        youngest = self.live.dead_until(self.clock)
        by_age = NEVER if youngest is None else f"epoch_ms(last_access) <= {youngest}"
        lived = f"{_running(self.live, self.clock)} - {_running_sql(self.live)}"
        dead = f"CASE WHEN coalesce(ttl_ms, 0) = 0 THEN {by_age} ELSE {lived} >= ttl_ms END"
        # A row without stamp was not written by a state: nothing is known of its age.
        return f"({ours} AND coalesce({dead}, false))"


def is_dead(expiries: Iterable[Expiry]) -> str:
    """SQL for rows of `keyed_state`: whether the TTL of their state has expired them."""
    return f"({' OR '.join(expiry.is_dead() for expiry in expiries) or NEVER})"


def expiries(declared: Declared, last: Checkpoint, *, processing_time: int, paused_since: int | None) -> list[Expiry]:
    """The states that expire, as a micro-batch at `processing_time` on top of `last` would see them when it begins.

    `paused_since` is when the micro-batch before it was committed.
    """
    known = last.state_ttl.advanced(
        declared, paused_since=paused_since, watermark_of=last.latest_watermark_of, processing_time=processing_time
    )
    found: list[Expiry] = []
    for name, ttl in declared.items():
        operator, _, state = name.partition(".")
        live = known.lives(operator).of(ttl, state)
        clock = last.watermark_of(operator) if live is not None and live.by_watermark else processing_time
        if live is not None and clock is not None:
            found.append(Expiry(operator, state, live, clock))
    return found


def certain_expiries(log: CheckpointLog, last: Checkpoint, declared: Declared, now: int) -> list[Expiry]:
    """The states that expire, by clocks that no later micro-batch can find to have been too fast.

    While a job is paused nobody knows whether the pause will become a gap. If it does, no life has run since the last
    micro-batch; so where gaps prolong, that is as far as processing time has come. The watermark stands still meanwhile, and
    no gap begins before it.
    """
    paused_since = last_micro_batch(log.checkpoints)
    found = expiries(declared, last, processing_time=now, paused_since=paused_since)
    if paused_since is None:
        return found
    return [
        each._replace(clock=min(each.clock, paused_since))
        if not each.live.by_watermark and _prolongs(declared[f"{each.operator}.{each.state}"])
        else each
        for each in found
    ]


def _prolongs(ttl: StateTtl | None) -> bool:
    return ttl is not None and ttl.on_gap is OnGap.PROLONG


def _running(live: LiveTtl, time: int) -> int:
    """How much of the time before `time` (ms) has counted: all but the gaps."""
    return time - sum(max(0, min(time, end) - start) for start, end in live.gaps)


def _running_sql(live: LiveTtl) -> str:
    """How much had counted before the entry's life began."""
    stamp = "epoch_ms(last_access)"
    if live.since is not None:
        stamp = f"greatest({stamp}, {live.since})"
    gaps = ", ".join(f"greatest(0, least({stamp}, {end}) - {start})" for start, end in live.gaps)
    return f"({stamp} - list_sum([{gaps}]))" if gaps else stamp
