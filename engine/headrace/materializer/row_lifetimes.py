"""Lifetimes of rows in a history that end without a retraction: by their TTL, or by a conflict that the watermark decides (FLIP-544, FLIP-558).

A row is expired once its insertion plus the TTL is at or before the clock: the last watermark before the record that
reads it, or the processing time of the micro-batch. Its insertion is its arrival, but never before that of an earlier
row of its key, so that ages are in order of arrival. Replacing a row renews it. LEGACY has one stamp for each key
instead, that of its latest change.

    ttl 10   +1a at 0   +2b at 3   +1c at 6            1c is first, and is the youngest
    watermark 13: 2b expires; watermark 16: 1c too     nothing is emitted

A row is settled once the watermark has reached its insertion: a retraction that makes room for it has arrived by then.
The watermark passes each timestamp in turn, however far it moves: rows that wait for a timestamp are settled, then rows expire.

    ttl 10, DO_NOTHING   +1a at 1   +2b at 4   watermark 12: at 4 1a stays and 2b is dropped, at 11 1a expires

Where conflicts are decided, a late row counts as inserted right after the watermark that preceded it: it waits for the
next watermark like any other row, and not for the end of the micro-batch, which must make no difference.

Both are exact for a key that gets records. For a key without records, a timer in the timers table runs a sweep, at the
next timestamp at which one of its rows ends; so the cost of sweeps is proportional to the number of removed rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.api.functions import TimeDomain
from headrace.api.graph import OnConflict, UpsertMaterialize
from headrace.errors import ConflictError
from headrace.execution.element import Watermark, behind_watermark
from headrace.materializer.histories import Histories
from headrace.materializer.ordered_multiset import Identity, Row
from headrace.options import Strategy
from headrace.records.order import caused_at
from headrace.state.backend import StateBackend, Write
from headrace.state.timers import EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP, Timer, TimerChange, TimerService
from headrace.state.ttl import LiveTtl

_SHOWN_ROWS = 3
"""Number of conflicting rows that an error shows."""

_DOMAINS = {TimeDomain.EVENT_TIME: EVENT_TIME_CLEANUP, TimeDomain.PROCESSING_TIME: PROCESSING_TIME_CLEANUP}


class RowLifetimes:
    """Lifetimes of one operator's rows, in one task."""

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
        """Take the clocks. `watermark` is the last watermark before the task's records, `watermarks` are those among and after them.

        `since` is the time at which TTL was enabled (ms, of its clock): no lifetime begins before it.
        """
        last = watermarks[-1].timestamp if watermarks else watermark
        self.metrics: Counter[str] = Counter()
        self.renews = operator.ttl is not None and strategy is Strategy.LEGACY
        """True: a matched retraction renews its key."""
        self._operator = operator
        self._histories = histories
        self._ttl = LiveTtl.of(operator.ttl, since=since)
        self._by_wall_clock = self._ttl is not None and not self._ttl.by_watermark
        self._settles = operator.on_conflict is not OnConflict.KEEP_HISTORY
        self._watermark = watermark
        self._decided: dict[bytes, int | None] = {}
        """By key, the watermark up to which conflicts are settled (ms)."""
        self._coming = [(behind_watermark(mark), mark.timestamp) for mark in reversed(watermarks)]
        self._processing_time = processing_time
        self._timers = TimerService(backend, last, processing_time)
        self._last = last
        self._due: dict[bytes, dict[TimeDomain, int]] = {}

    def remember(self, keys: Iterable[bytes]) -> None:
        """Store when rows of the keys, just loaded, end next: their timers are registered for these times."""
        for key in keys:
            if key not in self._due:
                self._due[key] = self._next_of(key, self._watermark)

    def begin(self, key: bytes, order: bytes, at: int) -> int:
        """Apply all ends before the record at `order` to its key; return the record's insertion time."""
        coming = self._coming
        while coming and coming[-1][0] <= order:
            self._watermark = coming.pop()[1]
        caused = caused_at(order)
        if caused is not None and (self._watermark is None or caused - 1 > self._watermark):
            self._watermark = caused - 1
        self._end(key)
        if self._settles and self._watermark is not None:
            at = max(at, self._watermark + 1)
        if self._ttl is None:
            return at
        newest = self._histories.live[key].newest()
        at = self._processing_time if self._by_wall_clock else at
        return at if newest is None else max(at, newest)

    def finish(self) -> None:
        """Apply all ends up to the last watermark, also for keys without records, and register the next ends."""
        while self._coming:
            self._watermark = self._coming.pop()[1]
        due = list(self._taken(TimeDomain.EVENT_TIME, self._last))
        due += self._taken(TimeDomain.PROCESSING_TIME, self._processing_time)
        self._histories.load(dict.fromkeys(due))
        self.remember(due)
        for key in self._due:
            self._end(key)
            self._register(key)

    def timer_changes(self) -> list[TimerChange]:
        """Return the timers that differ from the backend's."""
        return self._timers.changes()

    def timer_writes(self, changes: Sequence[TimerChange]) -> Iterable[Write]:
        """Return `changes` as writes to the backend."""
        return self._timers.writes(changes)

    def _taken(self, domain: TimeDomain, now: int | None) -> Iterable[bytes]:
        if now is None:
            return
        for key in self._timers.keys_due(now, domain):
            while self._timers.take_due(key, now, domain) is not None:
                pass
            yield key

    def _register(self, key: bytes) -> None:
        before, after = self._due[key], self._next_of(key, self._watermark)
        for domain, timestamp in before.items():
            if after.get(domain) != timestamp:
                self._timers.delete(Timer(timestamp, key, _DOMAINS[domain]))
        for domain, timestamp in after.items():
            self._timers.register(Timer(timestamp, key, _DOMAINS[domain]))

    def _end(self, key: bytes) -> None:
        """End the rows of a key whose time has come, timestamp by timestamp."""
        if self._settles and self._watermark is not None:
            timestamp = self._decided.get(key)
            while self._histories.live[key].size > 1:
                timestamp = self._next_of(key, timestamp).get(TimeDomain.EVENT_TIME)
                if timestamp is None or timestamp > self._watermark:
                    break
                self._settle(key, timestamp)
                self._expire(key, timestamp)
            self._decided[key] = self._watermark
        self._expire(key, self._processing_time if self._by_wall_clock else self._watermark)

    def _expire(self, key: bytes, now: int | None) -> None:
        rows = self._histories.live[key]
        if self._ttl is None or now is None or not rows.size:
            return
        until = self._ttl.dead_until(now)
        if until is None:
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
        """Resolve the conflict of a key's settled rows, if there are several."""
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
        """Return when rows of a history end next after this watermark, by clock."""
        rows = self._histories.live[key]
        ends: dict[TimeDomain, int] = {}
        if self._ttl is not None and rows.size:
            stamp = rows.newest() if self.renews else rows.oldest()
            domain = TimeDomain.PROCESSING_TIME if self._by_wall_clock else TimeDomain.EVENT_TIME
            ends[domain] = self._ttl.expires_at(stamp or 0)
        if self._settles and rows.size > 1:
            unsettled = [row[3] for _, row in rows.entries() if watermark is None or row[3] > watermark]
            if unsettled:
                ends[TimeDomain.EVENT_TIME] = min(*unsettled, ends.get(TimeDomain.EVENT_TIME, unsettled[0]))
        return ends
