"""What follows from a checkpoint for TTL (FLIP-25): the states that expire on top of it (`RowExpiry`), and what declares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.api import OnGap, Process, StateTtl, UpsertMaterialize
from headrace.commit.state_schemas import HISTORY_STATE
from headrace.state.ttl_history import DeclaredTtls, TtlHistory
from headrace.tables.row_expiry import RowExpiry

if TYPE_CHECKING:
    from headrace.plan.stages import Plan


class CommittedTtl(Protocol):
    """What a checkpoint says of TTL."""

    @property
    def state_ttl(self) -> TtlHistory:
        """The history as its micro-batch knew it."""
        ...

    def watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that all operators of an operator's line have seen (ms)."""
        ...

    def latest_watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that any operator of an operator's line has seen (ms)."""
        ...

    def latest_event_of(self, operator: str) -> int | None:
        """Return the latest event time that an operator's line has taken in since its last watermark (ms)."""
        ...


def row_expiries(
    declared: DeclaredTtls, last: CommittedTtl, *, processing_time: int, paused_since: int | None
) -> list[RowExpiry]:
    """Return the states that expire, as a micro-batch at `processing_time` on top of `last` would see them when it begins.

    `paused_since` is when the micro-batch before it was committed.
    """
    history = last.state_ttl.advanced(
        declared,
        paused_since=paused_since,
        watermark_of=last.latest_watermark_of,
        latest_event_of=last.latest_event_of,
        processing_time=processing_time,
    )
    expiries: list[RowExpiry] = []
    for name, ttl in declared.items():
        operator, _, state = name.partition(".")
        watermark = last.watermark_of(operator)
        lives = history.lives(operator)
        expiry = RowExpiry.of(operator, state, ttl, lives, watermark=watermark, processing_time=processing_time)
        if expiry is not None:
            expiries.append(expiry)
    return expiries


def certain_expiries(
    declared: DeclaredTtls, last: CommittedTtl, *, processing_time: int, paused_since: int | None
) -> list[RowExpiry]:
    """Return the states that expire, by clocks that no later micro-batch can find to have been too fast.

    While a job is paused nobody knows whether the pause will become a gap. If it does, no life has run since the last
    micro-batch; so where gaps prolong, that is as far as processing time has come. The watermark stands still meanwhile, and
    no gap begins before it.
    """
    seen_now = row_expiries(declared, last, processing_time=processing_time, paused_since=paused_since)
    if paused_since is None:
        return seen_now
    return [
        expiry._replace(clock=min(expiry.clock, paused_since))
        if not expiry.live.by_watermark and _prolongs(declared[f"{expiry.operator}.{expiry.state}"])
        else expiry
        for expiry in seen_now
    ]


def declared_ttls(plan: Plan) -> dict[str, StateTtl | None]:
    """The TTL of every state that the pipeline's functions declare, by `operator.state`."""
    return {
        f"{stage.operator.name}.{state}": ttl for stage in plan.keyed for state, ttl in ttls_of(stage.operator).items()
    }


def history_ttls(plan: Plan) -> dict[str, StateTtl | None]:
    """The TTL of every materializer's history, as `operator.history`."""
    return {
        f"{stage.operator.name}.{HISTORY_STATE}": stage.operator.ttl
        for stage in plan.keyed
        if isinstance(stage.operator, UpsertMaterialize) and stage.operator.is_needed
    }


def ttls_of(operator: object) -> dict[str, StateTtl | None]:
    """The TTL of every state that an operator's function declares, by name."""
    from headrace.execution.declarations import declared_states

    if not isinstance(operator, Process):
        return {}
    return {state.name: state.ttl for state in declared_states(operator.function).values()}


def _prolongs(ttl: StateTtl | None) -> bool:
    return ttl is not None and ttl.on_gap is OnGap.PROLONG
