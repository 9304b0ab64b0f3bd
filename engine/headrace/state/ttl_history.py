"""What is remembered of a job for TTL (FLIP-25): its pauses, and what its states declared.

With it an entry's life comes out the same in every task, attempt and tool: none of them looks at a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from headrace.api import OnGap, StateTtl
from headrace.state.ttl import EntryLifetimes, Gap

DeclaredTtls = Mapping[str, StateTtl | None]
"""The TTL of every declared state, by `operator.state`."""

TimeOf = Callable[[str], int | None]
"""A moment of event time (ms) by the name of an operator, such as the last watermark that any task of its line has seen."""

OFF = "off"
"""How a state without TTL is remembered."""

_MILLISECOND = timedelta(milliseconds=1)


def _unknown(_: str) -> None:
    return None


class TtlHistory(msgspec.Struct, frozen=True):
    """What was known when a micro-batch began.

    `gaps` are the pauses that a state declared to prolong lives, oldest first; one of two numbers, as stored by earlier versions,
    doesn't know at which watermark the job stopped. `declared` tells by `operator.state` what its TTL was, `since` from when on it was
    switched on, for a state that had been without, or was stamped by the other clock (ms, of the clock that ages its entries now).
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
        self,
        declared: DeclaredTtls,
        *,
        paused_since: int | None,
        watermark_of: TimeOf,
        processing_time: int,
        latest_event_of: TimeOf = _unknown,
    ) -> TtlHistory:
        """What a micro-batch at `processing_time` has to know: this, its own gap, and what is declared now.

        `paused_since` is when the last micro-batch was committed, None without one, and `watermark_of` tells how far it has come.
        `latest_event_of` tells the latest event time that an operator's line had taken in by then, where there was no watermark.
        """
        gaps = self.gaps
        if paused_since is not None and processing_time - paused_since > _shortest_gap(declared):
            watermarks = {name.partition(".")[0]: watermark_of(name.partition(".")[0]) for name in declared}
            gaps = (*gaps, Gap.at(paused_since, processing_time, watermarks))

        def event_time_of(operator: str) -> int | None:
            watermark = watermark_of(operator)
            return latest_event_of(operator) if watermark is None else watermark

        return TtlHistory(gaps, _texts(declared), self._switched_on(declared, event_time_of, processing_time))

    def changed(self, declared: DeclaredTtls) -> set[str]:
        """The operators with a state whose TTL is not what it was. Their local copies may lack what is alive now."""
        texts = _texts(declared)
        return {name.partition(".")[0] for name, before in self.declared.items() if texts.get(name, before) != before}

    def _switched_on(self, declared: DeclaredTtls, event_time_of: TimeOf, processing_time: int) -> dict[str, int]:
        since: dict[str, int] = {}
        for name, ttl in declared.items():
            if ttl is None or not ttl.is_active:
                continue
            # By the clock that ages entries: with event times of last year, all would be dead by processing time at once.
            now = event_time_of(name.partition(".")[0]) if ttl.expires_by_watermark else processing_time
            moment = self._began(name, ttl, now)
            if moment is not None:
                since[name] = moment
        return since

    def _began(self, name: str, ttl: StateTtl, now: int | None) -> int | None:
        """From when on a state's TTL counts, None for one that has had it from the beginning; `now` is what its clock says."""
        before, text, known = self.declared.get(name), _as_text(ttl), self.since.get(name)
        if before is None or now is None:
            return known
        if _stamped_by(before) != _stamped_by(text):
            return now
        return known if known is None or _aged_by(before) == _aged_by(text) else now


def _shortest_gap(declared: DeclaredTtls) -> float:
    """From which length on (ms) a pause counts for some state; infinite where it counts for none."""
    thresholds = (
        ttl.gap_threshold // _MILLISECOND
        for ttl in declared.values()
        if ttl is not None and ttl.is_active and ttl.on_gap is OnGap.PROLONG and ttl.gap_threshold is not None
    )
    return min(thresholds, default=float("inf"))


def _texts(declared: DeclaredTtls) -> dict[str, str]:
    """The declared TTLs as checkpoints remember them."""
    return {name: _as_text(ttl) for name, ttl in declared.items()}


def _stamped_by(text: str) -> str:
    """Which clock the stamps are of: `event time`, `processing time`, or none."""
    return text.partition(" from ")[2].partition(" by ")[0]


def _aged_by(text: str) -> str:
    """Which clock the entries age by: `watermark`, `processing time`, or none."""
    return text.partition(" by ")[2].partition(",")[0]


def _as_text(ttl: StateTtl | None) -> str:
    """All on which it depends whether an entry is alive."""
    if ttl is None or not ttl.is_active:
        return OFF
    clock = "watermark" if ttl.expires_by_watermark else "processing time"
    gap = "" if ttl.gap_threshold is None else f", prolonged by gaps over {ttl.gap_threshold}"
    return f"{ttl.ttl} from {ttl.time.value} time by {clock}{gap}"
