"""Many values of a window are in pieces: a micro-batch writes those that it changes, and results are those of whole sets."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import Pipeline, RowKind, Struct, Timestamp
from headrace.operators import Count, CountDistinct, Cumulative, Hopping, Max, Min, Session, Sum, Tumbling, after_rows
from headrace.options import AsyncStateOptions
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind


def ms(number):
    return timedelta(milliseconds=number)


class Bid(Struct, frozen=True):
    item: str
    at: Timestamp
    price: int | None
    bidder: str = ""


class Prices(Struct, frozen=True):
    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    total: Annotated[int | None, Sum("price")]
    prices: Annotated[int, CountDistinct("price")]
    bidders: Annotated[int, CountDistinct("bidder")]
    lowest: Annotated[int | None, Min("price")]
    highest: Annotated[int | None, Max("price")]


def prices_of(item: str, start: int, end: int, bids: list[Bid]) -> Prices:
    prices = [bid.price for bid in bids if bid.price is not None]
    return Prices(
        item,
        start,
        end,
        len(bids),
        sum(prices) if prices else None,
        len({*prices}),
        len({bid.bidder for bid in bids}),
        min(prices, default=None),
        max(prices, default=None),
    )


class Bids(Struct, frozen=True):
    item: str
    bids: Annotated[int, Count()]


def stream_of(windows, *, changes=False, gives=Prices, **options):
    kind = "kind" if changes else None
    source = Pipeline("auctions").source("bids", Bid, event_time="at", out_of_orderness=ms(1000), row_kind=kind)
    return source.key_by("item").window(windows).aggregate("prices", gives, **options)


def keyed_harness(stream, **options):
    return KeyedHarness(stream.operators[-1].function, key=attrgetter("item"), **options)


@contextlib.contextmanager
def rows_of(most, changes=1):
    """Let a row have so many values of each field, beside pieces, when its part has a multiple of so many changes."""
    with (
        mock.patch("headrace.operators._result_record.MOST_IN_ROW", most),
        mock.patch("headrace.operators._window_pieces.CHANGES", changes),
    ):
        yield


SLICED = [Tumbling(ms(10)), Hopping(ms(12), ms(4)), Cumulative(ms(12), ms(4))]
SESSIONS = [Session(ms(3)), Session(ms(6))]
SPANS = {
    str(SLICED[0]): lambda at: [(at - at % 10, at - at % 10 + 10)],
    str(SLICED[1]): lambda at: [(at - at % 4 - back, at - at % 4 - back + 12) for back in (0, 4, 8)],
    str(SLICED[2]): lambda at: [(at - at % 12, end) for end in range(at - at % 4 + 4, at - at % 12 + 13, 4)],
}
BIDS = st.builds(
    Bid, st.sampled_from("ab"), st.integers(0, 29), st.none() | st.integers(-9, 9), st.sampled_from("uvwxyz")
)


def table_of(kinds):
    """Return the rows that a changelog leaves, and check that it takes back only what is there."""
    table = {}
    for kind, row in kinds:
        place = (row.item, row.window_start, row.window_end)
        if kind.is_retraction:
            assert table.pop(place) == row
        else:
            assert place not in table
            table[place] = row
    return table


def with_retractions(bids, chance):
    """Yield each bid as an addition, and some that are there as retractions."""
    here = []
    for bid in bids:
        yield bid, INSERT
        here.append(bid)
        while here and chance.random() < 0.4:
            yield here.pop(chance.randrange(len(here))), chance.choice([BEFORE, DELETE])


def sessions_by_hand(gap, bids):
    """Return the result of each session; its end is in the place of the results of `windows_by_hand`."""
    results = {}
    for item in {bid.item for bid in bids}:
        sessions = []
        for bid in sorted((bid for bid in bids if bid.item == item), key=attrgetter("at")):
            if not sessions or bid.at >= sessions[-1][-1].at + gap:
                sessions.append([])
            sessions[-1].append(bid)
        spans = [((item, session[0].at, session[-1].at + gap), session) for session in sessions]
        results |= {span: prices_of(*span, session) for span, session in spans}
    return results


def windows_by_hand(windows, changes):
    if isinstance(windows, Session):
        return sessions_by_hand(windows.gap // ms(1), [bid for bid, _ in changes])
    held = defaultdict(list)
    for bid, kind in changes:
        for span in SPANS[str(windows)](bid.at):
            bids = held[bid.item, *span]
            bids.remove(bid) if kind.is_retraction else bids.append(bid)
    return {(item, start, end): prices_of(item, start, end, bids) for (item, start, end), bids in held.items() if bids}


@examples(40)
@given(
    bids=st.lists(BIDS, max_size=40),
    windows=st.sampled_from(SLICED),
    most=st.integers(1, 3),
    marks=st.lists(st.integers(0, 40), max_size=3),
    seed=st.integers(0, 999),
)
def test_windows_in_pieces_equal_a_plain_loop(bids, windows, most, marks, seed):
    changes = [*with_retractions(bids, random.Random(seed))]
    stream = stream_of(windows, changes=True, allowed_lateness=ms(1000))
    with rows_of(most), keyed_harness(stream) as harness:
        for number, (bid, kind) in enumerate(changes):
            for mark in marks:
                if number == mark:
                    harness.watermark(mark)
            harness.process(bid, timestamp=bid.at, kind=kind)
        harness.watermark(100)
        assert table_of(harness.kinds()) == windows_by_hand(windows, changes)
        assert not harness.quarantined()
        harness.watermark(10_000)
        assert not harness.snapshot().entries


@examples(60)
@given(
    bids=st.lists(BIDS, max_size=40),
    gap=st.integers(1, 8),
    most=st.integers(1, 3),
    every=st.integers(1, 3),
    marks=st.lists(st.integers(0, 40), max_size=3),
    early=st.sampled_from([None, ms(3), after_rows(2)]),
)
def test_sessions_in_pieces_equal_plain_loop(bids, gap, most, every, marks, early):
    stream = stream_of(Session(ms(gap)), allowed_lateness=ms(1000), early=early)
    with rows_of(most, every), keyed_harness(stream) as harness:
        for number, bid in enumerate(bids):
            for mark in marks:
                if number == mark:
                    harness.watermark(mark)
            harness.process(bid, timestamp=bid.at)
        harness.watermark(100)
        assert table_of(harness.kinds()) == sessions_by_hand(gap, bids)
        harness.watermark(10_000)
        assert not harness.snapshot().entries


@pytest.mark.parametrize("last", [3, 4, 5, 6])
def test_rows_that_a_cache_drops_stay_whole(last):
    bids = [Bid("a", 1, number, "x") for number in range(last)]
    options = AsyncStateOptions(cache_entries=1)
    with rows_of(1), keyed_harness(stream_of(SLICED[0], changes=True), options=options) as harness:
        for bid in bids:
            harness.process(bid, timestamp=1)
        for bid in bids[:-1]:
            harness.snapshot()  # the cache drops what is written
            harness.process(bid, timestamp=1, kind=DELETE)
        harness.watermark(100)
        assert not harness.quarantined()
        assert [row for _, row in harness.kinds()] == [prices_of("a", 0, 10, bids[-1:])]
        assert not harness.snapshot().entries


@pytest.mark.slow
@examples(8)
@given(
    bids=st.lists(BIDS, min_size=5, max_size=40),
    windows=st.sampled_from([*SLICED, *SESSIONS]),
    most=st.sampled_from([1, 2, 256]),
    every=st.integers(1, 4),
    retracts=st.booleans(),
    seed=st.integers(0, 999),
)
def test_splits_and_crashes_change_no_piece(bids, windows, most, every, retracts, seed):
    chance = random.Random(seed)
    retracts = retracts and windows not in SESSIONS
    changes = [*with_retractions(bids, chance)] if retracts else [(bid, INSERT) for bid in bids]
    pipeline = stream_of(windows, changes=retracts).sink("prices", key=("item", "window_start", "window_end"))
    states = []
    for is_split in (False, True):
        limits = {
            "in-flight-records-limit": chance.choice([1, 3, 6000]),
            "cache-entries": chance.choice([1, 2, 1000]),
            "enabled": chance.random() < 0.8,
        }
        job = {"execution": {"async-state": limits}}
        backend = chance.choice(["hashmap", "rocksdb", "delta"])
        harness, rest = PipelineHarness(pipeline, backend, parallelism=2, job=job), list(changes)
        with rows_of(most, every):
            while rest:
                size = chance.randint(1, 9) if is_split else len(rest)
                taken, rest = rest[:size], rest[size:]
                rows, kinds = zip(*taken, strict=True)
                harness.feed("bids", rows, kinds=kinds if retracts else None)
                harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
            harness.run()
            states.append(sorted(repr(row | {"checkpoint_id": 0}) for row in harness.live("keyed_state")))
            harness.run(end_of_input=True)
        shown = {(row.item, row.window_start, row.window_end): row for row in harness.sink("prices")}
        assert shown == windows_by_hand(windows, changes)
        assert harness.live("keyed_state") == []
    assert states[0] == states[1]


@pytest.mark.parametrize("windows", [SLICED[0], Session(ms(10))])
@pytest.mark.parametrize("purging", [False, True])
def test_early_results_of_pieces_are_whole(purging, windows):
    bids = [Bid("a", number % 5, number, "x") for number in range(12)]
    stream = stream_of(windows, early=after_rows(4, purging=purging))
    with rows_of(2), keyed_harness(stream) as harness:
        for bid in bids:
            harness.process(bid, timestamp=bid.at)
        shown = [row.prices for kind, row in harness.kinds() if not kind.is_retraction]
        assert shown == ([4, 4, 4] if purging else [4, 8, 12])
        harness.watermark(1000)
        assert not harness.snapshot().entries


def test_all_records_taken_back_leave_no_piece():
    bids = [Bid("a", 1, number, "x") for number in range(20)]
    with rows_of(2), keyed_harness(stream_of(SLICED[0], changes=True)) as harness:
        for kind in (INSERT, DELETE):
            for bid in bids:
                harness.process(bid, timestamp=1, kind=kind)
        assert len(harness.snapshot().entries) == 2  # the row and the timer
        harness.process(bids[0], timestamp=1, kind=DELETE)
        assert len(harness.quarantined()) == 1
        harness.process(bids[0], timestamp=1)
        harness.watermark(100)
        assert [row for _, row in harness.kinds()] == [prices_of("a", 0, 10, bids[:1])]


@pytest.mark.parametrize("windows", [Tumbling(ms(1000)), Hopping(ms(1000), ms(500)), Session(ms(1000))])
def test_change_of_many_values_writes_few(windows):
    pipeline = stream_of(windows).sink("prices")
    harness, written = PipelineHarness(pipeline), []
    for number in range(0, 5000, 100):
        harness.feed("bids", [Bid("a", 1, price, "x") for price in range(number, number + 100)])
        harness.run()
        rows = harness.table("keyed_state").to_pylist()
        last = max(row["checkpoint_id"] for row in rows)
        written.append(sum(len(row["value"] or "") for row in rows if row["checkpoint_id"] == last))
    values = len('"4999":1,') + 2
    assert sum(written) < 5000 * values * 10  # whole sets: 25 times as many values as there are
    assert sorted(written)[len(written) * 3 // 5] < 500 * values  # most micro-batches write no piece
    harness.run(end_of_input=True)
    assert [row.prices for row in harness.sink("prices")] == [5000] * len(harness.sink("prices"))
    assert harness.live("keyed_state") == []


@pytest.mark.parametrize("burst", [511, 400, 10])
@pytest.mark.parametrize("by_columns", [True, False])
def test_session_that_grows_by_merges_writes_few(burst, by_columns):
    """Each burst is a session of its own, until one more record joins it to the others."""
    enabled = {"execution": {"async-state": {"enabled": by_columns}}}
    harness = PipelineHarness(stream_of(Session(ms(1000))).sink("prices"), job=enabled)
    for number in range(30):
        at, first = number * 1500, number * (burst + 1)
        bids = [Bid("a", at, price, "x") for price in range(first, first + burst)]
        harness.feed("bids", [*bids, *([Bid("a", at - 750, first + burst, "x")] if number else [])])
        harness.run()
    rows = [
        row for row in harness.live("keyed_state") if "accumulators" in row["state"] and " " not in row["namespace"]
    ]
    assert [len(row["value"]) < 1500 * len('"9999":1,') for row in rows] == [True]
    harness.run(end_of_input=True)
    assert [row.prices for row in harness.sink("prices")] == [30 * (burst + 1) - 1]
    assert harness.live("keyed_state") == []


def test_whole_set_of_earlier_code_goes_on():
    function = stream_of(SLICED[0]).operators[-1].function
    with rows_of(10_000), KeyedHarness(function, key=attrgetter("item")) as harness:
        for price in range(20):
            harness.process(Bid("a", 1, price, "x"), timestamp=1)
        snapshot = harness.snapshot()
    assert not any(b"moved" in value for _, value in snapshot.entries)
    function = stream_of(SLICED[0]).operators[-1].function
    with rows_of(2), KeyedHarness.restore(snapshot, function, key=attrgetter("item")) as harness:
        for price in range(10, 30):
            harness.process(Bid("a", 1, price, "x"), timestamp=1)
        assert any(b"moved" in value for _, value in harness.snapshot().entries)
        harness.watermark(100)
        assert [row.prices for _, row in harness.kinds()] == [30]


@pytest.mark.parametrize("late", [0, 50])
@pytest.mark.parametrize("taken_back", [0, 20])
def test_pieces_of_removed_aggregates_end_with_windows(late, taken_back):
    bids = [Bid("a", 1, number, "x") for number in range(20)]
    versions = [stream_of(SLICED[0], changes=True, gives=gives, allowed_lateness=ms(late)) for gives in (Prices, Bids)]
    before, after = (version.operators[-1].function for version in versions)
    with rows_of(2), KeyedHarness(before, key=attrgetter("item")) as harness:
        for bid in bids:
            harness.process(bid, timestamp=1)
        snapshot = harness.snapshot()
    with KeyedHarness.restore(snapshot, after, key=attrgetter("item")) as harness:
        for bid in bids[:taken_back]:
            harness.process(bid, timestamp=1, kind=DELETE)
        harness.process(bids[0], timestamp=1)
        harness.watermark(100)
        assert [row for _, row in harness.kinds()] == [Bids("a", 21 - taken_back)]
        assert not harness.snapshot().entries


def test_pieces_of_removed_aggregates_outlast_columns():
    versions = [stream_of(SLICED[0], gives=gives).map(_bids_of).sink("bids") for gives in (Prices, Bids)]
    harness = PipelineHarness(versions[0])
    for version in versions:
        harness.change(pipeline=version)
        harness.feed("bids", [Bid("a", 1, number, "x") for number in range(20)])
        with rows_of(2):
            harness.run()
    harness.run(end_of_input=True)
    assert harness.sink("bids") == [Bids("a", 40)]
    assert harness.live("keyed_state") == []


def _bids_of(row: Prices | Bids) -> Bids:
    return Bids(row.item, row.bids)


def test_pieces_without_their_row_are_replaced():
    function = stream_of(SLICED[0]).operators[-1].function
    bids = [Bid("a", 1, number, "x") for number in range(40)]
    with rows_of(2), KeyedHarness(function, key=attrgetter("item")) as harness:
        for bid in bids[:20]:
            harness.process(bid, timestamp=1)
        snapshot = harness.snapshot()
    others = tuple(entry for entry in snapshot.entries if b"moved" not in entry[1])
    with (
        rows_of(2),
        KeyedHarness.restore(replace(snapshot, entries=others), function, key=attrgetter("item")) as harness,
    ):
        for bid in bids[20:]:
            harness.process(bid, timestamp=1)
        harness.watermark(100)
        assert [row.prices for _, row in harness.kinds()] == [20]


class Offer(Struct, frozen=True):
    item: str
    at: Timestamp
    price: Decimal


class Extremes(Struct, frozen=True):
    item: str
    lowest: Annotated[Decimal | None, Min("price")]
    highest: Annotated[Decimal | None, Max("price")]


@pytest.mark.parametrize("most", [1, 100])
def test_pieces_keep_last_form_of_values(most):
    source = Pipeline("auctions").source("offers", Offer, event_time="at", row_kind="kind")
    with rows_of(most), keyed_harness(source.key_by("item").window(SLICED[0]).aggregate("prices", Extremes)) as harness:
        for price in ("1.0", "5", "6", "7.00", "1.00", "2", "7.0", "1.000"):
            harness.process(Offer("a", 1, Decimal(price)), timestamp=1)
        harness.watermark(100)
        ((_, row),) = harness.kinds()
    assert [str(row.lowest), str(row.highest)] == ["1.000", "7.0"]
