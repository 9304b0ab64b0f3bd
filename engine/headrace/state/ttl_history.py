"""Stored TTL history of a job (FLIP-25): its pauses, and the declarations of its states.

With it, every task, attempt and tool computes the same lifetime of an entry: none of them reads a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from headrace.api import OnGap, StateTtl
from headrace.state.ttl import EntryLifetimes, Gap

DeclaredTtls = Mapping[str, StateTtl | None]
"""TTL of every declared state, by `operator.state`."""

TimeOf = Callable[[str], int | None]
"""Function from an operator's name to a moment of event time (ms), such as the last watermark seen by any task of its line."""

OFF = "off"
"""Stored text of a state without TTL."""

_MILLISECOND = timedelta(milliseconds=1)


def _unknown(_: str) -> None:
    return None


class TtlHistory(msgspec.Struct, frozen=True):
    """TTL history at the beginning of a micro-batch.

    `gaps` are the pauses long enough for some state's declared threshold, oldest first; a gap of two numbers, as stored
    by earlier versions, does not include the watermark at which the job stopped. `declared` is each state's TTL by
    `operator.state`, `since` when it was switched on, for a state that had no TTL before, or was stamped by the other
    clock (ms, of the clock that expires its entries now).
    """

    gaps: tuple[Gap, ...] = ()
    declared: dict[str, str] = {}
    since: dict[str, int] = {}

    def lives(self, operator: str) -> EntryLifetimes:
        """Return the data on lifetimes for one operator's states."""
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
        """Return the history for a micro-batch at `processing_time`: this one, its own gap, and the current declarations.

        `paused_since` is when the last micro-batch was committed, None without one; `watermark_of` returns its
        watermark. `latest_event_of` returns the latest event time that an operator's line had processed by then, where
        there was no watermark.
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
        """Return the operators with a state whose TTL changed. Their local copies may lack entries that are alive now."""
        texts = _texts(declared)
        return {name.partition(".")[0] for name, before in self.declared.items() if texts.get(name, before) != before}

    def _switched_on(self, declared: DeclaredTtls, event_time_of: TimeOf, processing_time: int) -> dict[str, int]:
        since: dict[str, int] = {}
        for name, ttl in declared.items():
            if ttl is None or not ttl.is_active:
                continue
            # By the clock that expires entries: by processing time, entries of last year's event time would all expire at once.
            now = event_time_of(name.partition(".")[0]) if ttl.expires_by_watermark else processing_time
            moment = self._began(name, ttl, now)
            if moment is not None:
                since[name] = moment
        return since

    def _began(self, name: str, ttl: StateTtl, now: int | None) -> int | None:
        """Return from when a state's TTL counts, None for a state that always had it; `now` is the time of its clock."""
        before, text, known = self.declared.get(name), _as_text(ttl), self.since.get(name)
        if before is None or now is None:
            return known
        if _stamped_by(before) != _stamped_by(text):
            return now
        return known if known is None or _aged_by(before) == _aged_by(text) else now


def _shortest_gap(declared: DeclaredTtls) -> float:
    """Return the length (ms) from which a pause counts for some state; infinite if it counts for none."""
    thresholds = (
        ttl.gap_threshold // _MILLISECOND
        for ttl in declared.values()
        if ttl is not None and ttl.is_active and ttl.on_gap is OnGap.PROLONG and ttl.gap_threshold is not None
    )
    return min(thresholds, default=float("inf"))


def _texts(declared: DeclaredTtls) -> dict[str, str]:
    """Return the declared TTLs as checkpoints store them."""
    return {name: _as_text(ttl) for name, ttl in declared.items()}


def _stamped_by(text: str) -> str:
    """Return the clock that stamps entries: `event time`, `processing time`, or none."""
    return text.partition(" from ")[2].partition(" by ")[0]


def _aged_by(text: str) -> str:
    """Return the clock that expires entries: `watermark`, `processing time`, or none."""
    return text.partition(" by ")[2].partition(",")[0]


def _as_text(ttl: StateTtl | None) -> str:
    """Return a text of everything that decides whether an entry is alive."""
    if ttl is None or not ttl.is_active:
        return OFF
    clock = "watermark" if ttl.expires_by_watermark else "processing time"
    gap = "" if ttl.gap_threshold is None else f", prolonged by gaps over {ttl.gap_threshold}"
    return f"{ttl.ttl} from {ttl.time.value} time by {clock}{gap}"
