"""The expected outcome of the job `purchases`, computed in one plain loop that shares no code with the engine."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.config import JobConfig
from tests.jobs.home import BUCKET
from tests.jobs.outcome import assert_well_formed, outcome, values_of
from tests.jobs.purchase_files import Row
from tests.jobs.purchases import BASKET_LIFETIMES, HOUR, LATENESS, LOOK_BACK, REMIND_AFTER

REMINDER = ("customer", "due", "purchases", "cents")
LINE = ("item", "customer", "bought", "cents", "in_basket", "idle")
NEVER = -(1 << 62)
TTL = round(BASKET_LIFETIMES.total_seconds() * 1000)
LAG = round(LATENESS.total_seconds() * 1000) + 1

Line = tuple[Any, ...]


@dataclass
class Customer:
    """One customer's state."""

    purchases: int = 0
    cents: int = 0
    remind_at: int = 0
    lines: list[Line] = field(default_factory=list)


@dataclass
class ByHand:
    """The loop's variables, which are also its result."""

    bucket: int
    customers: dict[str, Customer] = field(default_factory=dict)
    baskets: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    timers: list[tuple[int, str]] = field(default_factory=list)
    histories: dict[str, list[Line]] = field(default_factory=dict)
    reminders: list[tuple[Any, ...]] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    watermark: int = NEVER

    def take(self, rows: Sequence[Row | None]) -> None:
        """Process rows in the order of arrival, with a watermark after every full bucket.

        None stands for a row that is not a purchase: it only has a place in the order, and so has a row without a customer.
        """
        latest = NEVER
        for ordinal, row in enumerate(rows):
            if row is not None and row["customer"] is not None:
                self._purchase(row)
                latest = max(latest, row["at"])
            if (ordinal + 1) % self.bucket == 0 and latest - LAG > self.watermark:
                self.watermark = latest - LAG
                self._fire(self.watermark)

    def _purchase(self, row: Row) -> None:
        key, item, kind = row["customer"], row["item"], row["kind"]
        if kind == "-U":
            return
        customer = self.customers.setdefault(key, Customer())
        old = next((line for line in customer.lines if line[0] == item), None)
        if old is not None:
            customer.lines.remove(old)
        if kind == "-D":
            self.baskets.pop(key, None)
            self._retract(old or (item, key, 0, 0, 0, False))
            return
        stamp, items = self.baskets.get(key, (0, []))
        items = [] if stamp + TTL <= self.watermark else items
        self.baskets[key] = (max(row["at"], stamp) if items else row["at"], [*items, item])
        line = (
            item,
            key,
            (old[2] if old else 0) + 1,
            (old[3] if old else 0) + row["cents"],
            len(items) + 1,
            False,
        )
        if old is not None:
            self._retract(old)
        self._add(line)
        self._remind(customer, key, row)
        customer.purchases += 1
        customer.cents += row["cents"]
        customer.lines.append(line)
        # Timers for past times fire when the record is finished.
        self._fire(self.watermark, only=key)

    def _remind(self, customer: Customer, key: str, row: Row) -> None:
        if (customer.remind_at, key) in self.timers:
            self.timers.remove((customer.remind_at, key))
            heapq.heapify(self.timers)
        customer.remind_at = row["at"] + REMIND_AFTER
        self._register(customer.remind_at, key)
        if row["cents"] % LOOK_BACK == 0:
            self._register(row["at"] - 24 * HOUR, key)

    def _register(self, at: int, key: str) -> None:
        if (at, key) not in self.timers:
            heapq.heappush(self.timers, (at, key))

    def _fire(self, watermark: int, only: str | None = None) -> None:
        while self.timers and self.timers[0][0] <= watermark:
            at, key = heapq.heappop(self.timers)
            assert only in {None, key}, "a timer of another key was left over"
            customer = self.customers.setdefault(key, Customer())
            self.reminders.append((key, at, customer.purchases, customer.cents))
            if customer.lines and not customer.lines[-1][-1]:
                last = customer.lines.pop()
                idle = (*last[:-1], True)
                customer.lines.append(idle)
                self._retract(last)
                self._add(idle)

    def _add(self, line: Line) -> None:
        self.histories.setdefault(line[0], []).append(line)

    def _retract(self, line: Line) -> None:
        history = self.histories.setdefault(line[0], [])
        if line in history:
            history.remove(line)
        else:
            self.unmatched.append(json.dumps(line[0]))

    def spent(self) -> dict[str, Any]:
        """The state `spent` by key, as it is stored."""
        return {
            key: {
                "purchases": customer.purchases,
                "cents": customer.cents,
                "remind_at": customer.remind_at,
                "lines": [dict(zip(LINE, line, strict=True)) for line in customer.lines],
            }
            for key, customer in self.customers.items()
        }

    def sinks(self) -> dict[str, list[Line]]:
        """The rows of both sinks, as `Outcome` has them."""
        return {
            "lines_by_item": _by_column_name(LINE, (rows[-1] for rows in self.histories.values() if rows)),
            "reminders": _by_column_name(REMINDER, self.reminders),
        }


def _by_column_name(names: Sequence[str], rows: Iterable[Line]) -> list[Line]:
    order = sorted(range(len(names)), key=lambda position: names[position])
    return sorted((tuple(row[position] for position in order) for row in rows), key=repr)


def by_hand(days: Iterable[Sequence[Row]], bucket: int = BUCKET) -> ByHand:
    """Compute the job over some days; `bucket` is the configuration's."""
    result = ByHand(bucket)
    result.take([row for day in days for row in sorted(day, key=lambda row: row["seq"])])
    return result


def assert_as_by_hand(config: JobConfig, expected: ByHand) -> None:
    """Assert that the outcome of a job equals the loop: sinks, state, timers and watermark."""
    assert_well_formed(config)
    result = outcome(config)
    assert result.sinks == expected.sinks()
    assert values_of(config, "spent") == expected.spent()
    assert len(result.state["timers"]) == len(expected.timers)
    assert result.watermark == (None if expected.watermark == NEVER else expected.watermark)
