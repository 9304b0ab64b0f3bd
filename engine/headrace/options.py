"""Options that code and job files both name: strategies, execution, the sink upsert materializer.

Configuration needs these options, and nothing else of the API, which takes 50 ms to import.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

LONGEST: Final = timedelta(days=36_500)
"""Longest length of time that code or a job file may give: a longer one is a typing error, and would overflow sums of timestamps."""


class Strategy(enum.Enum):
    """Layouts of a materializer's history (FLIP-544, "Public Interfaces"). They do not change results, except LEGACY with a TTL."""

    LEGACY = "legacy"
    """A list, as in Flink's first materializer. A TTL applies to the key as a whole."""

    VALUE = "value"
    """A list; a TTL applies to each row."""

    MAP = "map"
    """Linked rows: a change costs as much in a history of a million rows as in one of ten."""

    ADAPTIVE = "adaptive"
    """A list while the history is short, linked rows when it is long."""


class KeyOrder(enum.Enum):
    """Order among records of one key (FLIP-425, "Strict order of 'processElement'")."""

    RECORD_ORDERED = "record-ordered"
    """A record starts when the previous one of the same key has finished."""
    STATE_ORDERED = "state-ordered"
    """A record starts at once, and waits at its first state access. For internal use: user code before
    that access may overtake the previous record."""


class EventOrder(enum.Enum):
    """Order of a watermark and the records after it (FLIP-425, "Watermark")."""

    OUT_OF_ORDER = "out-of-order"
    """Records after a watermark may start before it has been processed; each key still sees them in order."""
    STRICTLY_ORDERED = "strictly-ordered"
    """Records after a watermark wait until it, and the timers that it fires, are done."""


@dataclass(frozen=True, slots=True)
class AsyncStateOptions:
    """Options `execution.async-state.*`, with the FLIP's names and defaults. None of them changes results."""

    enabled: bool = True
    """False: each state access is answered before the next one."""
    in_flight_records_limit: int = 6000
    """Largest number of records (and timers) of a task that are running or waiting at once."""
    buffer_size: int = 1000
    """Number of requests in a batch."""
    buffer_timeout: timedelta = timedelta(seconds=1)
    """Longest time that a request waits for its batch to fill."""
    order_with_same_key: KeyOrder = KeyOrder.RECORD_ORDERED
    event_order_watermark: EventOrder = EventOrder.OUT_OF_ORDER
    io_parallelism: int = 2
    """Number of batches in execution at once, each in its own thread."""
    cache_entries: int = 1_000_000
    """Largest number of decoded values that a task caches, besides those that it changed."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a limit below 1, or a negative timeout."""
        for name in ("in_flight_records_limit", "buffer_size", "io_parallelism", "cache_entries"):
            if getattr(self, name) < 1:
                msg = f"{name} must be at least 1, not {getattr(self, name)}"
                raise ValueError(msg)
        if self.buffer_timeout < timedelta(0):
            msg = f"buffer_timeout must not be negative, not {self.buffer_timeout}"
            raise ValueError(msg)


DEFAULT_THRESHOLDS: Final = {"rocksdb": (50, 40), "hashmap": (400, 300), "delta": (400, 300)}
"""Thresholds (high, low) by backend. Those of RocksDB and the heap are the FLIP's; `delta` decodes histories in memory."""

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class MaterializerOptions:
    """Options `table.exec.sink.upsert-materialize.*`; None means the value of the pipeline or the backend.

    Raises `ValueError` unless 0 <= `threshold_low` < `threshold_high`, where both are known.
    """

    strategy: Strategy | None = None
    """Layout; None: that of the operator."""

    threshold_high: int | None = None
    """ADAPTIVE: number of rows of a key at which its list becomes a map. Default: 50 on rocksdb, else 400."""

    threshold_low: int | None = None
    """ADAPTIVE: number of rows of a key at which its map becomes a list again. Default: 40 on rocksdb, else 300."""

    def __post_init__(self) -> None:
        """Refuse thresholds that would switch back and forth."""
        if self.threshold_high is not None and self.threshold_low is not None:
            _check(self.threshold_high, self.threshold_low)

    def layouts(self, strategy: Strategy, backend: str) -> Layouts:
        """Return the layouts of an operator declared with `strategy`, on the backend of this name.

        Raises `ValueError` where one threshold is given and contradicts the default of the other.
        """
        default_high, default_low = DEFAULT_THRESHOLDS[backend]
        high = default_high if self.threshold_high is None else self.threshold_high
        low = default_low if self.threshold_low is None else self.threshold_low
        _check(high, low, self._defaults(backend))
        return Layouts(self.strategy or strategy, high, low, stores_maps=backend != "delta")

    def _defaults(self, backend: str) -> str:
        """Name the thresholds that are defaults, for an error."""
        given = {"low": self.threshold_low, "high": self.threshold_high}
        missing = " and ".join(name for name, value in given.items() if value is None)
        return f" ({missing}: the default on {backend})" if missing else ""


def _check(high: int, low: int, more: str = "") -> None:
    if not 0 <= low < high:
        msg = f"adaptive.threshold.low must be at least 0 and below adaptive.threshold.high, not {low} and {high}{more}"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Layouts:
    """Layout of a history by its size.

    The distance between `high` and `low` prevents a size that varies around one of them from switching at every change.

        high 5, low 3, sizes     1 2 3 4 5 4 3 4 5
        layout                   l l l l M M l l M
    """

    strategy: Strategy
    high: int
    low: int
    stores_maps: bool = True
    """True: a map is also stored as a map. False on `delta`: its table has a row for each row, and parts of the cached
    history may be evicted. A task uses maps in memory anyway."""

    def wants_map(self, size: int, *, is_map: bool) -> bool:
        """Return whether a history of `size` rows in its current layout should be a map."""
        if self.strategy is Strategy.ADAPTIVE:
            return size >= self.high or (is_map and size > self.low)
        return self.strategy is Strategy.MAP

    @property
    def grown_at(self) -> int:
        """Return the size at which a list becomes a map."""
        return self.high if self.strategy is Strategy.ADAPTIVE else _NEVER

    @property
    def shrunk_at(self) -> int:
        """Return the size at which a map becomes a list."""
        return self.low if self.strategy is Strategy.ADAPTIVE else -1
