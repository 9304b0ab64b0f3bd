"""Records that wait for others of their keys, so that a function takes them in bundles.

    order      1  2  | W |  3  4  | X |  5      first timer of 1 and 3: before X
    key        a  b         a  b                first timer of 2 and 4: later
    bundles            1 3 go before X, 2 4 go on waiting

A key's events are its records and its timers. So its records can wait beyond a watermark which fires none of its timers:
none of those it has, and none that the waiting records will register.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from headrace.execution.element import NO_WATERMARK, Element


class WaitingBundle:
    """Records of a key that wait, in arrival order. `watermark` is the last one before the first of them (ms)."""

    __slots__ = ("earliest", "elements", "late", "returns", "until", "watermark")

    def __init__(self, elements: list[Element], watermark: int, earliest: int, until: int, returns: int = 0) -> None:
        """Start with some records of a key."""
        self.returns = returns
        """How often some of the records have been put back."""
        self.elements = elements
        self.late = 0
        """Number of late records among them."""
        self.watermark = watermark
        self.earliest = earliest
        """Least event time of the records (ms)."""
        self.until = until
        """The records cannot wait beyond a watermark of this time (ms), or a later one."""


class WaitingBundles:
    """The bundles of one task.

    `first_timer` is that of the `BundleFunction`. `turns` are the due timers of event time by key, each key's as a heap of
    tuples that begin with the time. `occupied` has the keys whose code waits for state, and may still register timers.
    """

    def __init__(
        self,
        first_timer: Callable[[int], int | None],
        turns: Mapping[bytes, Sequence[tuple[Any, ...]]],
        occupied: Container[bytes],
    ) -> None:
        """Start without records."""
        self._first_timer = first_timer
        self._turns = turns
        self._occupied = occupied
        self._bundles: dict[bytes, WaitingBundle] = {}
        self._ends: list[tuple[int, bytes]] = []
        """Heap of times until which the records of a key may wait. A key has several if a later record lowers it."""
        self.count = 0
        """Number of records that wait."""

    def add(self, element: Element, watermark: int) -> None:
        """Let a record wait, which follows all others in arrival order. `watermark` is the last one before it (ms)."""
        self.count += 1
        key_json, timestamp = element.key_json, element.timestamp
        bundle = self._bundles.get(key_json)
        if bundle is None:
            self._start(key_json, WaitingBundle([element], watermark, timestamp, self._first_timer_after(timestamp)))
            return
        bundle.elements.append(element)
        if timestamp < bundle.earliest:
            bundle.earliest = timestamp
            until = self._first_timer_after(timestamp)
            if until < bundle.until:
                bundle.until = until
                heapq.heappush(self._ends, (until, key_json))

    def add_late(self, element: Element, watermark: int) -> None:
        """Let a record wait that is at or below the watermark before it."""
        self.add(element, watermark)
        self._bundles[element.key_json].late += 1

    def _start(self, key_json: bytes, bundle: WaitingBundle) -> None:
        turns = self._turns.get(key_json)
        if key_json in self._occupied:
            bundle.until = NO_WATERMARK
        elif turns and turns[0][0] < bundle.until:
            bundle.until = turns[0][0]
        self._bundles[key_json] = bundle
        if len(self._ends) > 2 * len(self._bundles) + _FEW:  # late records have taken bundles before their ends
            self._ends = [(other.until, key) for key, other in self._bundles.items()]
            heapq.heapify(self._ends)
            return
        heapq.heappush(self._ends, (bundle.until, key_json))

    def put_back(self, taken: WaitingBundle, elements: Sequence[Element], until: int) -> None:
        """Let some elements of a bundle wait again, until a time (ms), before the next record of the key."""
        self.count += len(elements)
        earliest = min(element.timestamp for element in elements)
        self._start(
            elements[0].key_json, WaitingBundle([*elements], taken.watermark, earliest, until, taken.returns + 1)
        )

    def _first_timer_after(self, timestamp: int) -> int:
        first = self._first_timer(timestamp)
        return NO_WATERMARK if first is None else first

    def take(self, key_json: bytes) -> WaitingBundle | None:
        """Remove and return a key's records."""
        bundle = self._bundles.pop(key_json, None)
        if bundle is not None:
            self.count -= len(bundle.elements)
        return bundle

    def take_before(self, watermark: int) -> list[WaitingBundle]:
        """Remove and return what cannot wait beyond a watermark (ms), by the watermark before it."""
        ends, bundles, taken = self._ends, self._bundles, []
        while ends and ends[0][0] <= watermark:
            _, key_json = heapq.heappop(ends)
            bundle = bundles.get(key_json)
            if bundle is not None and bundle.until <= watermark:
                del bundles[key_json]
                self.count -= len(bundle.elements)
                taken.append(bundle)
        return _by_watermark(taken)

    def take_all(self) -> list[WaitingBundle]:
        """Remove and return everything, by the watermark before it."""
        taken = _by_watermark(self._bundles.values())
        self._bundles.clear()
        self._ends.clear()
        self.count = 0
        return taken


def _by_watermark(bundles: Iterable[WaitingBundle]) -> list[WaitingBundle]:
    return sorted(bundles, key=lambda bundle: bundle.watermark)


_FEW = 1000
"""Number of ends beside those of the bundles that wait which are not worth looking for."""
