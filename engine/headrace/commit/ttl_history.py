"""What a job's checkpoints remember for TTL (FLIP-25): pauses of the job, and what was declared.

With it an entry's life comes out the same in every task, attempt and tool: none of them looks at a clock of its own.
From it follow the expiries of the states (`RowExpiry`) on top of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.api import OnGap, Process, StateTtl, TtlTime, UpsertMaterialize
from headrace.commit.state_schemas import HISTORY_STATE
from headrace.state.ttl import EntryLifetimes, Gap
from headrace.tables.row_expiry import RowExpiry

if TYPE_CHECKING:
    from headrace.plan.stages import Plan

DeclaredTtls = Mapping[str, StateTtl | None]
"""The TTL of every declared state, by `operator.state`."""

WatermarkOf = Callable[[str], int | None]
"""The last watermark that any task of an operator's line has seen (ms), by the operator's name."""

OFF = "off"
"""How a state without TTL is remembered."""

_MILLISECOND = timedelta(milliseconds=1)


class TtlHistory(msgspec.Struct, frozen=True):
    """What was known when a micro-batch began.

    `gaps` are the pauses that a state declared to prolong lives, oldest first; one of two numbers, as stored by earlier versions,
    doesn't know at which watermark the job stopped. `declared` tells by `operator.state` what its TTL was, `since` from when on it was
    switched on, for a state that had been without, or was stamped by the other clock (ms, of the clock that stamps its entries now).
    """

    gaps: tuple[Gap, ...] = ()
    declared: dict[str, str] = {}
    since: dict[str, int] = {}

    def lives(self, operator: str) -> EntryLifetimes:
        """What one operator's states have to know."""
        beginning = f"{operator}."
        own = {name.removeprefix(beginning): at for name, at in self.since.items() if name.startswith(beginning)}
        return EntryLifetimes(tuple(gap.of(operator) for gap in self.gaps), own)

    def advanced(
        self, declared: DeclaredTtls, *, paused_since: int | None, watermark_of: WatermarkOf, processing_time: int
    ) -> TtlHistory:
        """What a micro-batch at `processing_time` has to know: this, its own gap, and what is declared now.

        `paused_since` is when the last micro-batch was committed, None without one, and `watermark_of` tells how far it has come.
        """
        gaps = self.gaps
        if paused_since is not None and processing_time - paused_since > _shortest_gap(declared):
            watermarks = {name.partition(".")[0]: watermark_of(name.partition(".")[0]) for name in declared}
            gaps = (*gaps, Gap.at(paused_since, processing_time, watermarks))
        return TtlHistory(gaps, _texts(declared), self._switched_on(declared, watermark_of, processing_time))

    def changed(self, declared: DeclaredTtls) -> set[str]:
        """The operators with a state whose TTL is not what it was. Their local copies may lack what is alive now."""
        texts = _texts(declared)
        return {name.partition(".")[0] for name, before in self.declared.items() if texts.get(name, before) != before}

    def _switched_on(self, declared: DeclaredTtls, watermark_of: WatermarkOf, processing_time: int) -> dict[str, int]:
        since: dict[str, int] = {}
        for name, ttl in declared.items():
            if ttl is None or not ttl.is_active:
                continue
            now = watermark_of(name.partition(".")[0]) if ttl.time is TtlTime.EVENT else processing_time
            before = self.declared.get(name)
            if before is not None and _stamped_by(before) != _stamped_by(_as_text(ttl)) and now is not None:
                since[name] = now
            elif name in self.since:
                since[name] = self.since[name]
        return since


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


def row_expiries(
    declared: DeclaredTtls, last: CommittedTtl, *, processing_time: int, paused_since: int | None
) -> list[RowExpiry]:
    """Return the states that expire, as a micro-batch at `processing_time` on top of `last` would see them when it begins.

    `paused_since` is when the micro-batch before it was committed.
    """
    history = last.state_ttl.advanced(
        declared, paused_since=paused_since, watermark_of=last.latest_watermark_of, processing_time=processing_time
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


def _shortest_gap(declared: DeclaredTtls) -> float:
    """From which length on (ms) a pause counts for some state; infinite where it counts for none."""
    thresholds = (
        ttl.gap_threshold // _MILLISECOND
        for ttl in declared.values()
        if ttl is not None and ttl.is_active and ttl.on_gap is OnGap.PROLONG and ttl.gap_threshold is not None
    )
    return min(thresholds, default=float("inf"))


def _prolongs(ttl: StateTtl | None) -> bool:
    return ttl is not None and ttl.on_gap is OnGap.PROLONG


def _texts(declared: DeclaredTtls) -> dict[str, str]:
    """The declared TTLs as checkpoints remember them."""
    return {name: _as_text(ttl) for name, ttl in declared.items()}


def _stamped_by(text: str) -> str:
    """Which clock the stamps are of: `event time`, `processing time`, or none."""
    return text.partition(" from ")[2].partition(" by ")[0]


def _as_text(ttl: StateTtl | None) -> str:
    """All on which it depends whether an entry is alive."""
    if ttl is None or not ttl.is_active:
        return OFF
    clock = "watermark" if ttl.expires_by_watermark else "processing time"
    gap = "" if ttl.gap_threshold is None else f", prolonged by gaps over {ttl.gap_threshold}"
    return f"{ttl.ttl} from {ttl.time.value} time by {clock}{gap}"
