"""How a materializer lays its histories out (FLIP-544, "Public Interfaces"). None of it changes results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.api import Strategy

DEFAULT_THRESHOLDS: Final = {"rocksdb": (50, 40), "hashmap": (400, 300), "delta": (400, 300)}
"""High and low by backend. The FLIP gives those of RocksDB and of the heap; what `delta` reads is decoded in memory."""

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class MaterializerOptions:
    """The options `table.exec.sink.upsert-materialize.*`; a `None` means what the pipeline or the backend says.

    Raises `ValueError` unless 0 <= `threshold_low` < `threshold_high`, where both are known.
    """

    strategy: Strategy | None = None
    """The layout; `None`: that of the operator."""

    threshold_high: int | None = None
    """ADAPTIVE: rows of a key from which on its list becomes a map. Default: 50 on rocksdb, else 400."""

    threshold_low: int | None = None
    """ADAPTIVE: rows of a key down to which its map becomes a list again. Default: 40 on rocksdb, else 300."""

    def __post_init__(self) -> None:
        """Refuse thresholds that would switch back and forth."""
        if self.threshold_high is not None and self.threshold_low is not None:
            _check(self.threshold_high, self.threshold_low)

    def layouts(self, strategy: Strategy, backend: str) -> Layouts:
        """The layouts of an operator declared with `strategy`, on a backend of this name.

        Raises `ValueError` where one threshold is given and contradicts the default of the other.
        """
        default_high, default_low = DEFAULT_THRESHOLDS[backend]
        high = default_high if self.threshold_high is None else self.threshold_high
        low = default_low if self.threshold_low is None else self.threshold_low
        _check(high, low, self._defaults(backend))
        return Layouts(self.strategy or strategy, high, low, stores_maps=backend != "delta")

    def _defaults(self, backend: str) -> str:
        """Which of the thresholds nobody has given, for a message."""
        given = {"low": self.threshold_low, "high": self.threshold_high}
        missing = " and ".join(name for name, value in given.items() if value is None)
        return f" ({missing}: the default on {backend})" if missing else ""


def _check(high: int, low: int, more: str = "") -> None:
    if not 0 <= low < high:
        msg = f"adaptive.threshold.low must be at least 0 and below adaptive.threshold.high, not {low} and {high}{more}"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Layouts:
    """Which layout a history of some size has.

    The distance of `high` and `low` keeps a size that goes up and down around one of them from switching with every change.

        high 5, low 3, sizes     1 2 3 4 5 4 3 4 5
        layout                   l l l l M M l l M
    """

    strategy: Strategy
    high: int
    low: int
    stores_maps: bool = True
    """Whether a map is stored as one, too. Not on `delta`: there the table itself has a row for each row, and what is
    cached of it may be forgotten piece by piece. A task has maps in memory all the same."""

    def wants_map(self, size: int, *, is_map: bool) -> bool:
        """Whether a history of `size` rows, now laid out as it is, should be a map."""
        if self.strategy is Strategy.ADAPTIVE:
            return size >= self.high or (is_map and size > self.low)
        return self.strategy is Strategy.MAP

    @property
    def grown_at(self) -> int:
        """The size at which a list becomes a map."""
        return self.high if self.strategy is Strategy.ADAPTIVE else _NEVER

    @property
    def shrunk_at(self) -> int:
        """The size at which a map becomes a list."""
        return self.low if self.strategy is Strategy.ADAPTIVE else -1
