"""Aggregates of records that may be taken back equal those of a plain list of the records that were not."""

from __future__ import annotations

import random
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from headrace import AggregateFunction, Digits, Emit, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.operators import ArgMax, ArgMin, Count, CountDistinct, First, Hopping, Last, Max, Min, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind


class Bid(Struct, frozen=True):
    auction: str
    at: Timestamp
    price: int
    cost: float | None
    money: Annotated[Decimal, Digits(6, 1)]
    bidder: str


class Texts(AggregateFunction[Bid, list[str], str]):
    """All bidders in the order of the alphabet."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return sorted([*accumulator, value.bidder])

    def retract(self, value, accumulator):
        accumulator.remove(value.bidder)
        return accumulator

    def get_result(self, accumulator):
        return "".join(accumulator)

    def merge(self, one, other):
        return sorted([*one, *other])


class Summary(Struct, frozen=True):
    auction: str
    bids: Annotated[int, Count()]
    lowest: Annotated[int, Min("price")]
    highest: Annotated[int, Max("price")]
    dear: Annotated[int | None, Max("price", where=lambda bid: bid.bidder == "y")]
    cheapest: Annotated[float | None, Min("cost")]
    most: Annotated[Annotated[Decimal, Digits(6, 1)], Max("money")]
    first: Annotated[str, First("bidder")]
    last: Annotated[float | None, Last("cost")]
    best: Annotated[str, ArgMax("bidder", by="price")]
    worst: Annotated[Bid | None, ArgMin(by="cost")]
    texts: Annotated[str, Texts()]
    prices: Annotated[int, CountDistinct("price")]
    costs: Annotated[int, CountDistinct("cost", where=lambda bid: bid.bidder == "x")]


def kept(changes, value=lambda bid: bid, *, taken=-1):
    """Return the bids that are not taken back, by time; of several with an equal `value`, the last (-1) or first (0) to arrive is taken."""
    bids = []
    for bid, kind in changes:
        if kind.is_retraction:
            del bids[[place for place, other in enumerate(bids) if value(other) == value(bid)][taken]]
        else:
            bids.append(bid)
    return sorted(bids, key=lambda bid: bid.at)


def summary(auction, changes):
    """Return the summary of the changes of an auction, field by field; None where all bids are taken back."""
    bids = kept(changes)
    if not bids:
        return None
    costs = [bid for bid in bids if bid.cost is not None]
    firsts = kept(changes, lambda bid: (bid.at, bid.bidder))
    lasts = [bid.cost for bid in kept(changes, lambda bid: (bid.at, bid.cost), taken=0) if bid.cost is not None]
    best = kept(changes, lambda bid: (bid.at, bid.price, bid.bidder))
    return Summary(
        auction,
        len(bids),
        min(bid.price for bid in bids),
        max(bid.price for bid in bids),
        max((bid.price for bid in bids if bid.bidder == "y"), default=None),
        min((bid.cost for bid in costs), default=None),
        max(bid.money for bid in bids),
        firsts[0].bidder,
        lasts[-1] if lasts else None,
        max(best, key=lambda bid: bid.price).bidder,
        min(costs, key=lambda bid: bid.cost, default=None),
        "".join(sorted(bid.bidder for bid in bids)),
        len({bid.price for bid in bids}),
        len({bid.cost for bid in costs if bid.bidder == "x"}),
    )


BIDS = st.builds(
    Bid,
    st.sampled_from("ab"),
    st.sampled_from([3, 13]) | st.integers(0, 29),
    st.integers(-4, 4),
    st.sampled_from([None, -0.0, 0.0, 1.5]),
    st.sampled_from([Decimal("0.0"), Decimal("1.0"), Decimal("-3.5")]),
    st.sampled_from("xy"),
)
CHANGES = st.lists(st.tuples(BIDS, st.booleans(), st.integers(0, 99)), max_size=25)


def with_retractions(changes):
    """Yield each bid as an addition, and now and then one that is there as a retraction."""
    here: list[Any] = []
    for bid, takes_back, place in changes:
        yield bid, INSERT
        here.append(bid)
        if takes_back:
            taken = here.pop(place % len(here))
            yield taken, [BEFORE, DELETE][place % 2]


def run_in_pieces(harness, changes, chance):
    """Run the changes in some micro-batches, of which some crash, and end the input."""
    rest = list(changes)
    while rest:
        size = chance.randint(1, 7)
        bids, kinds = zip(*rest[:size], strict=True)
        rest = rest[size:]
        harness.feed("bids", bids, kinds=kinds)
        harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.run(end_of_input=True)


def keyed():
    pipeline = Pipeline("auctions")
    return pipeline.source("bids", Bid, event_time="at", row_kind="kind").key_by("auction")


def function_of(stream):
    return stream.operators[-1].function


LIFETIMES = [Lifetime.FOREVER, timedelta(days=1)]
EMITTED = [*((emit, Lifetime.FOREVER) for emit in Emit), (Emit.EVERY_CHANGE, timedelta(days=1))]


@contextmanager
def rows_of(values):
    """Let the row of a key have so many values, beside entries."""
    with mock.patch.multiple("headrace.operators._multisets", MOST_DISTINCT=values, MOST_FIRST=values):
        yield


@examples(60)
@given(changes=CHANGES, most=st.integers(2, 5), lifetime=st.sampled_from(LIFETIMES))
def test_aggregates_equal_a_list_of_kept_bids(changes, most, lifetime):
    function = function_of(keyed().aggregate("summary", Summary, state_ttl=lifetime))
    held: dict[str, list[Any]] = {}
    with rows_of(most), KeyedHarness(function, key=lambda bid: bid.auction) as harness:
        table = {}
        for bid, kind in with_retractions(changes):
            held.setdefault(bid.auction, []).append((bid, kind))
            harness.process(bid, timestamp=bid.at, kind=kind)
        for kind, row in harness.kinds():
            if kind.is_retraction:
                assert table.pop(row.auction) == row
            else:
                table[row.auction] = row
        stored = {entry.rpartition(b"\x00")[0] for entry, _ in harness.snapshot().entries}
        left = [*filter(None, map(kept, held.values()))]
        assert len(left) == len(held) or len(stored) <= len(left) * 8
        expected = {auction: summary(auction, its_changes) for auction, its_changes in held.items()}
        assert table == {auction: row for auction, row in expected.items() if row is not None}


@examples(30)
@given(
    changes=CHANGES,
    windows=st.sampled_from([(10, 10), (20, 10)]),
    at=st.lists(st.integers(0, 60), max_size=4),
    lateness=st.sampled_from([0, 100]),
)
def test_windows_equal_a_list_of_kept_bids(changes, windows, at, lateness):
    size, slide = windows
    length, step = timedelta(milliseconds=size), timedelta(milliseconds=slide)
    kind_of_window = Tumbling(length) if size == slide else Hopping(length, step)
    stream = keyed().window(kind_of_window)
    function = function_of(
        stream.aggregate("summary", WindowSummary, allowed_lateness=timedelta(milliseconds=lateness))
    )
    held: dict[tuple[str, int], list[Any]] = {}
    watermark, rest = -1, sorted(at, reverse=True)
    table = {}
    with KeyedHarness(function, key=lambda bid: bid.auction) as harness:
        for place, (bid, kind) in enumerate(with_retractions(changes)):
            while rest and place >= rest[-1] % 20:
                watermark = max(watermark, rest.pop())
                harness.watermark(watermark)
            starts = [start for start in range(-size, 60, slide) if start <= bid.at < start + size]
            if max(starts) + size - 1 + lateness <= watermark:
                pass  # late: all its windows are over
            else:
                for start in starts:
                    held.setdefault((bid.auction, start), []).append((bid, kind))
            harness.process(bid, timestamp=bid.at, kind=kind)
        harness.watermark(1000)
        for kind, row in harness.kinds():
            place = (row.auction, row.window_start)
            if kind.is_retraction:
                assert table.pop(place) == row
            else:
                table[place] = row
    if lateness or not at:  # without lateness, windows that have fired miss what came behind
        expected = {place: summary(place[0], its_changes) for place, its_changes in held.items()}
        shown = {place: WindowSummary.of(row, place[1]) for place, row in expected.items() if row is not None}
        assert table == shown


class WindowSummary(Struct, frozen=True):
    auction: str
    window_start: Timestamp
    lowest: Annotated[int, Min("price")]
    highest: Annotated[int, Max("price")]
    first: Annotated[str, First("bidder")]
    last: Annotated[float | None, Last("cost")]
    best: Annotated[str, ArgMax("bidder", by="price")]
    texts: Annotated[str, Texts()]

    @classmethod
    def of(cls, row: Summary, start: int) -> WindowSummary:
        return cls(row.auction, start, row.lowest, row.highest, row.first, row.last, row.best, row.texts)


@pytest.mark.slow
@examples(6)
@given(changes=CHANGES, seed=st.integers(0, 999), emitted=st.sampled_from(EMITTED), most=st.sampled_from([2, 3, 64]))
def test_splits_and_crashes_change_no_aggregate(changes, seed, emitted, most):
    chance, (emit, lifetime) = random.Random(seed), emitted
    pipeline = keyed().aggregate("summary", Summary, emit=emit, state_ttl=lifetime).sink("summary", key="auction")
    harness = PipelineHarness(pipeline, parallelism=2)
    rest, held = [*with_retractions(changes)], {}
    for bid, kind in rest:
        held.setdefault(bid.auction, []).append((bid, kind))
    with rows_of(most):
        run_in_pieces(harness, rest, chance)
    expected = [summary(auction, its_changes) for auction, its_changes in held.items()]
    assert sorted(harness.sink("summary"), key=lambda row: row.auction) == sorted(
        filter(None, expected), key=lambda row: row.auction
    )


class Ends(Struct, frozen=True):
    auction: str
    first: Annotated[str | None, First("bidder")]
    first_bid: Annotated[Bid, First()]
    last: Annotated[str | None, Last("bidder")]
    last_bid: Annotated[Bid, Last()]
    best: Annotated[str, ArgMax("bidder", by="price")]
    best_bid: Annotated[Bid, ArgMax(by="price")]
    worst: Annotated[str, ArgMin("bidder", by="price")]
    worst_bid: Annotated[Bid, ArgMin(by="price")]


ALIKE = st.builds(
    Bid, st.just("a"), st.integers(3, 4), st.integers(0, 1), st.just(1.5), st.just(Decimal(1)), st.sampled_from("xyz")
)


@examples(60)
@given(
    bids=st.lists(ALIKE, min_size=2, max_size=9),
    times=st.integers(0, 8),
    newest=st.booleans(),
    is_windowed=st.booleans(),
)
def test_fields_and_whole_records_agree(bids, times, newest, is_windowed):
    """The newest bid that is taken back leaves `First` and its kin those of the whole bids, and the oldest one `Last`."""
    bids = [structs.replace(bid, money=Decimal(place)) for place, bid in enumerate(bids)]
    taken = (bids[::-1] if newest else bids)[: min(times, len(bids) - 1)]
    stream = (
        keyed().window(Tumbling(timedelta(1))).aggregate("ends", Ends)
        if is_windowed
        else keyed().aggregate("ends", Ends, state_ttl=Lifetime.FOREVER)
    )
    with KeyedHarness(function_of(stream), key=lambda bid: bid.auction) as harness:
        for bid, kind in [*((bid, INSERT) for bid in bids), *((bid, DELETE) for bid in taken)]:
            harness.process(bid, timestamp=bid.at, kind=kind)
        harness.watermark(1 << 40)
        _, row = harness.kinds()[-1]
    pairs = (
        [(row.first, row.first_bid), (row.best, row.best_bid), (row.worst, row.worst_bid)]
        if newest
        else [(row.last, row.last_bid)]
    )
    assert [bidder for bidder, _ in pairs] == [bid.bidder for _, bid in pairs]


BID = Bid("a", 5, 1, 2.0, Decimal("1.0"), "x")


class Lowest(Struct, frozen=True):
    auction: str
    lowest: Annotated[int, Min("price")]


class Best(Struct, frozen=True):
    auction: str
    best: Annotated[str, ArgMax("bidder", by="price")]


class Earliest(Struct, frozen=True):
    auction: str
    first: Annotated[str, First("bidder")]


@pytest.mark.parametrize("result", [Lowest, Best, Earliest])
def test_value_that_never_came_goes_to_quarantine(result):
    stream = keyed().aggregate("summary", result, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(stream.sink("summary", key="auction"))
    harness.feed("bids", [BID, Bid("a", 5, 7, 2.0, Decimal("1.0"), "z")], kinds=[INSERT, DELETE])
    harness.run(end_of_input=True)
    assert len(harness.sink("summary")) == 1
    (row,) = harness.table("quarantine").to_pylist()
    assert "matches none of the records of its key" in row["error"]


class Silent(AggregateFunction[Bid, int, int]):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, one, other):
        return one + other


class Counted(Struct, frozen=True):
    auction: str
    own: Annotated[int, Silent()]


def test_own_function_without_retract_is_refused():
    message = r"own = Silent\(\) cannot take a record back: give the AggregateFunction a method retract\(\)"
    with pytest.raises(ValueError, match=message):
        keyed().aggregate("summary", Counted, state_ttl=Lifetime.FOREVER)
    with pytest.raises(ValueError, match=message):
        keyed().window(Tumbling(timedelta(1))).aggregate("summary", Counted)
    with pytest.raises(NotImplementedError, match=r"Silent has no method retract\(\)"):
        Silent().retract(BID, 1)


@examples(3)
@given(changes=CHANGES, seed=st.integers(0, 999))
def test_splits_and_crashes_change_no_window(changes, seed):
    chance, ten = random.Random(seed), timedelta(milliseconds=10)
    pipeline = Pipeline("auctions")
    source = pipeline.source("bids", Bid, event_time="at", row_kind="kind", out_of_orderness=10 * ten).key_by("auction")
    source.window(Tumbling(ten)).aggregate("summary", WindowSummary).sink("summary", key=("auction", "window_start"))
    harness = PipelineHarness(pipeline, parallelism=2)
    rest, held = [*with_retractions(changes)], {}
    for bid, kind in rest:
        held.setdefault((bid.auction, bid.at // 10 * 10), []).append((bid, kind))
    run_in_pieces(harness, rest, chance)
    expected = [
        WindowSummary.of(row, start)
        for (auction, start), its_changes in held.items()
        if (row := summary(auction, its_changes)) is not None
    ]
    assert sorted(harness.sink("summary"), key=repr) == sorted(expected, key=repr)
