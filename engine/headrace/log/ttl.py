"""TTL on top of a checkpoint (FLIP-25): the states that expire (`RowExpiry`), and the declarations behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.api.graph import Process, UpsertMaterialize
from headrace.api.ttl import OnGap, StateTtl
from headrace.log.declared import HISTORY_STATE
from headrace.state.ttl import DeclaredTtls, TtlHistory
from headrace.tables.expiry import RowExpiry

if TYPE_CHECKING:
    from headrace.plan.stages import Plan


class CommittedTtl(Protocol):
    """Fields of a checkpoint that TTL depends on."""

    @property
    def state_ttl(self) -> TtlHistory:
        """Return the history as its micro-batch knew it."""
        ...

    def watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that all operators of an operator's timeline have seen (ms)."""
        ...

    def latest_watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that any operator of an operator's timeline has seen (ms)."""
        ...

    def latest_event_of(self, operator: str) -> int | None:
        """Return the latest event time that an operator's timeline has taken in since its last watermark (ms)."""
        ...


def row_expiries(
    declared: DeclaredTtls, last: CommittedTtl, *, processing_time: int, paused_since: int | None
) -> list[RowExpiry]:
    """Return the states that expire for a micro-batch that begins at `processing_time` (ms) on top of `last`.

    `paused_since` is when the micro-batch before it was committed (ms).
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
        lifetimes = history.lifetimes(operator)
        expiry = RowExpiry.of(operator, state, ttl, lifetimes, watermark=watermark, processing_time=processing_time)
        if expiry is not None:
            expiries.append(expiry)
    return expiries


def certain_expiries(
    declared: DeclaredTtls, last: CommittedTtl, *, processing_time: int, paused_since: int | None
) -> list[RowExpiry]:
    """Return the states that expire for certain: no later micro-batch can decide that they still live.

    While a job is paused, the pause may still become a gap. If it does, lifetimes have not run since the last micro-batch; so with
    gaps that prolong lifetimes, processing time counts only up to there. The watermark stands still meanwhile, and no gap begins
    before it.
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
    """Return the TTL of every state that the pipeline's functions declare, by `operator.state`."""
    return {
        f"{stage.operator.name}.{state}": ttl for stage in plan.keyed for state, ttl in ttls_of(stage.operator).items()
    }


def history_ttls(plan: Plan) -> dict[str, StateTtl | None]:
    """Return the TTL of every materializer's history, as `operator.history`."""
    return {
        f"{stage.operator.name}.{HISTORY_STATE}": stage.operator.ttl
        for stage in plan.keyed
        if isinstance(stage.operator, UpsertMaterialize) and stage.operator.is_needed
    }


def ttls_of(operator: object) -> dict[str, StateTtl | None]:
    """Return the TTL of every state that an operator's function declares, by name."""
    from headrace.execution.bound_function import declared_states

    if not isinstance(operator, Process):
        return {}
    return {state.name: state.ttl for state in declared_states(operator.function).values()}


def _prolongs(ttl: StateTtl | None) -> bool:
    return ttl is not None and ttl.on_gap is OnGap.PROLONG
