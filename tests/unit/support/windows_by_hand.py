"""The results of windows, by a plain loop over all records: no slices, no state, no timers."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter

from headrace.operators import Cumulative, Hopping, Session, Tumbling


def summary_of(rows):
    """The fields of `Summary` after the window's end; rows are (arrival, bid), in order of arrival."""
    bids = [bid for _, bid in rows]
    priced = [bid for bid in bids if bid.price is not None]
    prices = [bid.price for bid in priced]
    by_time = sorted(bids, key=lambda bid: bid.at)  # stable: of one timestamp in order of arrival
    priced_by_time = sorted(priced, key=lambda bid: bid.at)
    best = min(priced_by_time, key=lambda bid: -bid.price, default=None)
    worst = min(priced_by_time, key=lambda bid: bid.price, default=None)
    return (
        len(bids),
        len(priced),
        sum(prices) if prices else None,
        min(prices, default=None),
        max(prices, default=None),
        sum(prices) / len(prices) if prices else None,
        len({bid.bidder for bid in bids}),
        best and best.bidder,
        worst and worst.bidder,
        by_time[0].bidder,
        priced_by_time[-1].price if priced else None,
        sum((bid.price or 0) > 5 for bid in bids),
        by_time[-1].at,
        "".join(sorted(bid.bidder for bid in bids)),
    )


def windows_of(windows, at):
    """Return all windows of a time, found by trying: (start, end). Windows with a method `windows_at` know theirs."""
    if hasattr(windows, "windows_at"):
        return windows.windows_at(at)
    one = lambda length: length.total_seconds() * 1000  # noqa: E731
    if isinstance(windows, Tumbling):
        sizes, step = [one(windows.size)], one(windows.size)
    elif isinstance(windows, Hopping):
        sizes, step = [one(windows.size)], one(windows.slide)
    else:
        assert isinstance(windows, Cumulative)
        step = one(windows.max_size)
        sizes = [one(windows.step) * n for n in range(1, round(step / one(windows.step)) + 1)]
    offset = one(windows.offset)
    number = (at - offset) // step
    starts = [offset + (number + n) * step for n in range(-20, 3)]
    return {(round(start), round(start + size)) for start in starts for size in sizes if start <= at < start + size}


def grouped(windows, bids):
    """Return rows by (item, start, end); no row is late."""
    groups = defaultdict(list)
    if not isinstance(windows, Session):
        for number, bid in enumerate(bids):
            for start, end in windows_of(windows, bid.at):
                groups[bid.item, start, end].append((number, bid))
        return groups
    gap = round(windows.gap.total_seconds() * 1000)
    for item in {bid.item for bid in bids}:
        session = []
        for row in sorted(((n, bid) for n, bid in enumerate(bids) if bid.item == item), key=lambda row: row[1].at):
            if session and row[1].at - session[-1][1].at >= gap:
                _close(groups, item, session, gap)
                session = []
            session.append(row)
        _close(groups, item, session, gap)
    return groups


def _close(groups, item, session, gap):
    groups[item, session[0][1].at, session[-1][1].at + gap] = sorted(session, key=lambda row: row[0])


def summaries(windows, bids):
    """Return the results without late records: a tuple for each key and window."""
    return sorted((*window, *summary_of(rows)) for window, rows in grouped(windows, bids).items())


class LateModel:
    """The contents of windows with late records: rows by (item, start, end), and the bids that came too late."""

    def __init__(self, windows, lateness, key=attrgetter("item")):
        self.windows, self.lateness, self.key = windows, lateness, key
        self.watermark = -(1 << 62)
        self.groups = defaultdict(list)
        self.late = []
        self._number = 0

    def take(self, bid, sign=1):
        self._number += 1
        spans = self._session(bid) if isinstance(self.windows, Session) else windows_of(self.windows, bid.at)
        open_spans = [span for span in spans if self._is_open(span)]
        for span in open_spans:
            self.groups[self.key(bid), *span].append((self._number, bid, sign))
        if not open_spans:
            self.late.append(bid)

    def _is_open(self, span):
        return span[1] - 1 + self.lateness > self.watermark

    def _session(self, bid):
        gap = round(self.windows.gap.total_seconds() * 1000)
        start, end, rows = bid.at, bid.at + gap, []
        for group in [group for group in self.groups if group[0] == self.key(bid) and self._is_open(group[1:])]:
            if group[1] < bid.at + gap and bid.at < group[2]:
                start, end = min(start, group[1]), max(end, group[2])
                rows += self.groups.pop(group)
        if rows:
            self.groups[self.key(bid), start, end] = rows
        return [(start, end)]

    @property
    def summaries(self):
        """The results of windows that have fired: a tuple for each."""
        groups = {group: sorted((n, bid) for n, bid, _ in rows) for group, rows in self._fired}
        return sorted((*group, *summary_of(rows)) for group, rows in groups.items())

    @property
    def totals(self):
        """Return the rows of `summaries` with the fields of `Totals`, after retractions."""
        results = []
        for group, rows in self._fired:
            prices = [(bid.price, sign) for _, bid, sign in rows if bid.price is not None]
            count, values = sum(sign for *_, sign in rows), sum(sign for _, sign in prices)
            total = sum(price * sign for price, sign in prices)
            bidders = defaultdict(int)
            for _, bid, sign in rows:
                bidders[bid.bidder] += sign
            distinct = sum(number > 0 for number in bidders.values())
            if count > 0:
                some = (total, total / values) if values else (None, None)
                results.append((*group, count, *some, distinct))
        return sorted(results)

    @property
    def _fired(self):
        return [(group, rows) for group, rows in self.groups.items() if group[2] - 1 <= self.watermark]
