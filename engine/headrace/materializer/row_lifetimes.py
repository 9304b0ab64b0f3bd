"""When rows of a history end by themselves: their TTL, and conflicts that are decided at the watermark (FLIP-544, FLIP-558).

A row is dead once its insertion plus the TTL is at or before the clock: the last watermark before the record that looks, or
the processing time of the micro-batch. It counts as inserted when it came, but never before a row of its key that came
earlier, so that ages are in order of arrival. Replacing a row renews it. LEGACY has one stamp a key instead, that of
its newest change.

    ttl 10   +1a at 0   +2b at 3   +1c at 6            1c stands first, and is the youngest
    watermark 13: 2b is dead; watermark 16: 1c too     nothing is emitted

A row is settled once the watermark has reached its insertion: a retraction that makes room for it must have come by then.
Where conflicts are decided, a row that comes late counts as inserted right after the watermark that it came behind: it waits for the
next one like any other, and not for the end of a micro-batch, which must make no difference.

Both are exact for a key that gets records. One that gets none is swept by a timer in the timers table, at the moment at
which something of it ends next; so a sweep costs as much as there is to remove.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.api import OnConflict, Strategy, TimeDomain, TtlTime, UpsertMaterialize
from headrace.errors import ConflictError
from headrace.execution.element import Watermark
from headrace.materializer.histories import Histories
from headrace.materializer.ordered_multiset import Identity, Row
from headrace.state.backend import StateBackend, Write
from headrace.state.timer_service import (
    EVENT_TIME_CLEANUP,
    PROCESSING_TIME_CLEANUP,
    Timer,
    TimerChange,
    TimerService,
)

_LONG_AGO = -(1 << 62)
_SHOWN_ROWS = 3
"""Rows of a conflict that its error shows."""

_DOMAINS = {TimeDomain.EVENT_TIME: EVENT_TIME_CLEANUP, TimeDomain.PROCESSING_TIME: PROCESSING_TIME_CLEANUP}


class RowLifetimes:
    """The lives of one operator's rows, in one task."""

    def __init__(
        self,
        operator: UpsertMaterialize,
        strategy: Strategy,
        backend: StateBackend,
        histories: Histories,
        *,
        watermark: int | None,
        watermarks: Sequence[Watermark],
        processing_time: int,
        since: int | None = None,
    ) -> None:
        """`watermark` is the last one before the task's records, `watermarks` are those among and after them.

        `since` is when TTL was switched on (ms, of its clock): no life begins before it.
        """
        last = watermarks[-1].timestamp if watermarks else watermark
        self.metrics: Counter[str] = Counter()
        self.renews = operator.ttl is not None and strategy is Strategy.LEGACY
        """Whether a matched retraction renews its key."""
        self._operator = operator
        self._histories = histories
        self._ttl = None if operator.ttl is None else operator.ttl.milliseconds
        self._since = _LONG_AGO if since is None else since
        self._by_wall_clock = operator.ttl is not None and operator.ttl.time is TtlTime.PROCESSING
        self._settles = operator.on_conflict is not OnConflict.KEEP_HISTORY
        self._watermark = watermark
        self._passed = [] if watermark is None else [watermark]
        self._decided: dict[bytes, int] = {}
        """How many of the watermarks that have passed a key has seen."""
        self._coming = [(mark.order, mark.timestamp) for mark in reversed(watermarks)]
        self._processing_time = processing_time
        self._timers = TimerService(backend, last, processing_time)
        self._last = last
        self._due: dict[bytes, dict[TimeDomain, int]] = {}

    def remember(self, keys: Iterable[bytes]) -> None:
        """Take note of when something of the keys, just loaded, ends next: their timers are registered for that."""
        for key in keys:
            if key not in self._due:
                self._due[key] = self._next_of(key, self._watermark)

    def begin(self, key: bytes, order: bytes, at: int) -> int:
        """End what has ended before the record at `order`; return when that record's row counts as inserted."""
        coming = self._coming
        while coming and coming[-1][0] <= order:
            self._pass(coming.pop()[1])
        self._end(key)
        if self._settles and self._watermark is not None:
            at = max(at, self._watermark + 1)
        if self._ttl is None:
            return at
        newest = self._histories.live[key].newest()
        at = self._processing_time if self._by_wall_clock else at
        return at if newest is None else max(at, newest)

    def finish(self) -> None:
        """End all that has ended by the last watermark, of keys without records too, and register what ends next."""
        while self._coming:
            self._pass(self._coming.pop()[1])
        due = list(self._taken(TimeDomain.EVENT_TIME, self._last))
        due += self._taken(TimeDomain.PROCESSING_TIME, self._processing_time)
        self._histories.load(dict.fromkeys(due))
        self.remember(due)
        for key in self._due:
            self._end(key)
            self._register(key)

    def timer_changes(self) -> list[TimerChange]:
        """The timers that differ from the backend's."""
        return self._timers.changes()

    def timer_writes(self, changes: Sequence[TimerChange]) -> Iterable[Write]:
        """`changes` as the backend takes them."""
        return self._timers.writes(changes)

    def _taken(self, domain: TimeDomain, now: int | None) -> Iterable[bytes]:
        if now is None:
            return
        for key in self._timers.keys_due(now, domain):
            while (timer := self._timers.first_due(key, now, domain)) is not None:
                self._timers.take(timer)
            yield key

    def _pass(self, watermark: int) -> None:
        self._watermark = watermark
        self._passed.append(watermark)

    def _register(self, key: bytes) -> None:
        before, after = self._due[key], self._next_of(key, self._watermark)
        for domain, moment in before.items():
            if after.get(domain) != moment:
                self._timers.delete(Timer(moment, key, _DOMAINS[domain]))
        for domain, moment in after.items():
            self._timers.register(Timer(moment, key, _DOMAINS[domain]))

    def _end(self, key: bytes) -> None:
        if self._ttl is not None and self._settles:
            self._end_in_turn(key)
        self._end_at(key, self._watermark)

    def _end_in_turn(self, key: bytes) -> None:
        """Stop at each watermark at which something of a key ends, if several have passed: which came first, matters.

        ttl 10, DO_NOTHING   +1a at 1   +2b at 4   watermark 5: 1a stays, 2b goes   watermark 12: 1a is dead
                                                   straight to 12: 1a is dead, and 2b would live on
        """
        passed, place = self._passed, self._decided.get(key, 0)
        while place < len(passed) and self._histories.live[key].size > 1:
            due = self._next_of(key, passed[place - 1] if place else None)[TimeDomain.EVENT_TIME]
            place = bisect_left(passed, due, place)
            if place < len(passed):
                self._end_at(key, passed[place])
                place += 1
        self._decided[key] = len(passed)

    def _end_at(self, key: bytes, watermark: int | None) -> None:
        if self._ttl is not None:
            self._expire(key, self._ttl, self._processing_time if self._by_wall_clock else watermark)
        if self._settles and watermark is not None and self._histories.live[key].size > 1:
            self._settle(key, watermark)

    def _expire(self, key: bytes, ttl: int, now: int | None) -> None:
        rows = self._histories.live[key]
        if now is None or not rows.size:
            return
        until = now - ttl
        if until < self._since:  # what came earlier counts as inserted then
            return
        if self.renews:
            newest = rows.newest()
            if newest is None or newest > until:
                return
        expired = rows.expire(until)
        if expired:
            self.metrics["expired"] += expired
            self._histories.switch(key)

    def _settle(self, key: bytes, watermark: int) -> None:
        """Decide among the rows of a key that are settled, if there are several."""
        items = list(self._histories.live[key].entries())
        settled = [item for item in items if item[1][3] <= watermark]
        if len(settled) < 2:  # noqa: PLR2004 - a conflict takes two
            return
        if self._operator.on_conflict is OnConflict.ERROR:
            raise self._conflict(key, settled)
        stays = settled[0 if self._operator.on_conflict is OnConflict.DO_NOTHING else -1]
        kept = [item for item in items if item is stays or item[1][3] > watermark]
        self.metrics["conflicts"] += len(items) - len(kept)
        self._histories.replace(key, kept)

    def _conflict(self, key: bytes, settled: Sequence[tuple[Identity, Row]]) -> ConflictError:
        texts = [row[1].decode(errors="replace") for _, row in settled]
        more = "" if len(texts) <= _SHOWN_ROWS else f" and {len(texts) - _SHOWN_ROWS:,} more"
        msg = (
            f"operator '{self._operator.name}': {len(texts):,} rows claim the primary key {key.decode(errors='replace')}, and none "
            f"was taken back by the time of the watermark: {', '.join(texts[:_SHOWN_ROWS])}{more}. The operator says "
            "on_conflict=ERROR, so the run stops; nothing was committed. Repair the input that has them, make the rows' upsert "
            "key part of the primary key, or choose another on_conflict; then run again."
        )
        return ConflictError(msg)

    def _next_of(self, key: bytes, watermark: int | None) -> dict[TimeDomain, int]:
        """When something of a history ends next after this watermark, by clock."""
        rows = self._histories.live[key]
        found: dict[TimeDomain, int] = {}
        if self._ttl is not None and rows.size:
            stamp = rows.newest() if self.renews else rows.oldest()
            domain = TimeDomain.PROCESSING_TIME if self._by_wall_clock else TimeDomain.EVENT_TIME
            found[domain] = max(stamp or 0, self._since) + self._ttl
        if self._settles and rows.size > 1:
            unsettled = [row[3] for _, row in rows.entries() if watermark is None or row[3] > watermark]
            if unsettled:
                found[TimeDomain.EVENT_TIME] = min(*unsettled, found.get(TimeDomain.EVENT_TIME, unsettled[0]))
        return found
