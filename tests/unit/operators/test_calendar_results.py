"""Windows of a calendar give the results of a plain loop, over changes of the clocks and of the rules of a zone."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind
from headrace.errors import UserFunctionError
from headrace.operators import Calendar, CalendarUnit
from headrace.operators import _windows as windows_module
from headrace.operators._calendar import Periods
from headrace.testing import KeyedHarness, PipelineHarness, SideRecord
from tests.unit.operators.calendar_by_hand import CalendarByHand
from tests.unit.operators.priced_jobs import Order, Priced, Rate
from tests.unit.operators.window_jobs import Bid, Summary, Totals, window_pipeline
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import LateModel, summaries

HOUR = 3_600_000


def ms(text):
    """Return a UTC time, as `2018-11-04T03:00`, in ms."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def calendar_of(unit, zone):
    return Calendar(unit, zone=zone, first_weekday=6 if unit is CalendarUnit.WEEK else 0)


ZONES = ["Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Pacific/Apia"]
CALENDARS = st.builds(calendar_of, st.sampled_from(CalendarUnit), st.sampled_from(ZONES))
CHANGES = [ms("2011-12-30T10:00"), ms("2012-02-26T02:00"), ms("2012-03-25T01:00"), ms("2012-04-01T05:00"), ms("2012-10-21T03:00")]  # fmt: skip
TIMES = st.sampled_from(CHANGES).flatmap(
    lambda at: st.integers(-50, 50).map(lambda hours: at + hours * HOUR - hours % 2)
)
BIDS = st.builds(Bid, st.sampled_from("ab"), TIMES, st.none() | st.integers(-9, 9), st.sampled_from("xyz"))


def rows(records):
    return sorted(msgspec.structs.astuple(record) for record in records)


@examples(4)
@given(
    windows=CALENDARS,
    bids=st.lists(BIDS, min_size=1, max_size=30),
    early=st.sampled_from([None, 24]),
    seed=st.integers(0, 1 << 30),
)
def test_splits_tasks_and_crashes_change_nothing(windows, bids, early, seed):
    chance = random.Random(seed)
    sink = "summaries"
    early = None if early is None else early * HOUR
    pipeline = window_pipeline(windows, lag=500 * 24 * HOUR, early=early, sink=sink)
    harness = PipelineHarness(pipeline, bucket=chance.choice([1, 4]), parallelism=chance.choice([1, 2]))
    place = chance.randint(0, len(bids))
    harness.feed("bids", bids[:place])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.feed("bids", bids[place:])
    harness.run(end_of_input=True)
    assert rows(harness.sink(sink)) == summaries(CalendarByHand(windows), bids)


def function_of(windows, result=Totals, **options):
    pipeline = window_pipeline(windows, result, **options)
    return next(operator for operator in pipeline.operators if operator.name == "summary").function


def harness_of(windows, **options):
    sides = {"late": Bid} if options.get("late") else {}
    return KeyedHarness(function_of(windows, **options), key=lambda bid: bid.item, side_outputs=sides)


def table_of(changes):
    """Return the rows that a changelog leaves; a retracted row must exist."""
    table = Counter()
    for kind, record in changes:
        row = msgspec.structs.astuple(record)
        table[row] += -1 if kind.is_retraction else 1
        assert table[row] >= 0
    return sorted(table.elements())


@pytest.mark.parametrize("lateness", [0, 30])
@examples(15)
@given(windows=CALENDARS, events=st.lists(BIDS | TIMES, max_size=25))
def test_late_records_equal_a_loop(lateness, windows, events):
    model = LateModel(CalendarByHand(windows), lateness * HOUR)
    with harness_of(windows, result=Summary, lateness=lateness * HOUR, late=True) as harness:
        for event in [*events, ms("2014-01-01")]:
            if isinstance(event, int):
                model.watermark = max(model.watermark, event)
                harness.watermark(model.watermark)
            else:
                model.take(event)
                harness.process(event, timestamp=event.at)
        assert table_of(harness.kinds()) == model.summaries
        assert [output.record for output in harness.output() if isinstance(output, SideRecord)] == model.late
        assert harness.snapshot().entries == ()


ORDERS = st.builds(Order, st.sampled_from("ab"), TIMES, st.integers(1, 2))
RATES = st.builds(Rate, st.sampled_from("ab"), TIMES, st.integers(1, 2))


@pytest.mark.slow
@examples(6)
@given(windows=CALENDARS, orders=st.lists(ORDERS, min_size=1, max_size=12), rates=st.lists(RATES, max_size=12))
def test_joins_equal_a_nested_loop(windows, orders, rates):
    by_hand = CalendarByHand(windows)

    def matches(order, rate):
        return order.currency == rate.currency and by_hand.windows_at(order.at) == by_hand.windows_at(rate.at)

    shop, lag = Pipeline("shop"), timedelta(days=500)
    left = shop.source("orders", Order, event_time="at", out_of_orderness=lag).key_by("currency").window(windows)
    rated = shop.source("rates", Rate, event_time="at", out_of_orderness=lag).key_by("currency")
    right = rated.window(calendar_of(windows.unit, windows.zone))
    left.join("priced", right, emit=Priced.of).sink("priced")
    left.semi_join("matched", right).sink("matched")
    left.anti_join("unmatched", right).sink("unmatched")
    harness = PipelineHarness(shop)
    harness.feed("orders", orders)
    harness.feed("rates", rates)
    harness.run(end_of_input=True)
    pairs = [Priced.of(order, rate) for order in orders for rate in rates if matches(order, rate)]
    assert by_fields(harness.sink("priced")) == by_fields(pairs)
    for sink, is_matched in (("matched", True), ("unmatched", False)):
        expected = [order for order in orders if any(matches(order, rate) for rate in rates) is is_matched]
        assert by_fields(harness.sink(sink)) == by_fields(expected)


def test_sides_in_different_zones_are_refused():
    shop = Pipeline("shop")
    orders = shop.source("orders", Order, event_time="at").key_by("currency")
    rates = shop.source("rates", Rate, event_time="at").key_by("currency")
    berlin, paris = (calendar_of(CalendarUnit.DAY, f"Europe/{city}") for city in ("Berlin", "Paris"))
    with pytest.raises(
        ValueError, match="the windows are calendar, days of Europe/Berlin and calendar, days of Europe/P"
    ):
        orders.window(berlin).join("priced", rates.window(paris), emit=Priced.of)


@examples(3)
@given(windows=CALENDARS, bids=st.lists(BIDS, min_size=1, max_size=12))
def test_first_of_each_window_equals_sorting(windows, bids):
    lag = timedelta(days=500)
    stream = Pipeline("p").source("bids", Bid, event_time="at", out_of_orderness=lag).key_by("item")
    harness = PipelineHarness(stream.window(windows).top("last", 1, by="at").sink("last"), bucket=2)
    harness.feed("bids", bids)
    harness.run(end_of_input=True)
    latest, by_hand = {}, CalendarByHand(windows)
    for bid in sorted(bids, key=lambda bid: bid.at, reverse=True):  # stable: of one time the first to arrive
        latest.setdefault((bid.item, *by_hand.windows_at(bid.at)), bid)
    assert by_fields(harness.sink("last")) == by_fields(latest.values())


@pytest.mark.parametrize("at", [253_402_300_799_999, 253_402_300_700_000])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_year_beyond_the_calendar_is_an_error(zone, at):
    windows = calendar_of(CalendarUnit.YEAR, zone)
    with harness_of(windows) as harness, pytest.raises(UserFunctionError, match="ends after the year 9999"):
        harness.process(Bid("a", at, 1), timestamp=at)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_day_before_the_calendar_is_an_error(zone):
    at = ms("0001-01-01")
    with harness_of(calendar_of(CalendarUnit.DAY, zone)) as harness:
        with pytest.raises(UserFunctionError, match="begins before the year 1"):
            harness.process(Bid("a", at, 1), timestamp=at)
        harness.watermark(0)
        harness.process(Bid("a", at, 1), timestamp=at)  # late


# ------------------------------------------------------------------------------------------------- rules that change

MONTHS = calendar_of(CalendarUnit.MONTH, "Asia/Amman")


def with_rules_of(zone, monkeypatch):
    """Let the rules of all zones be those of `zone` from now on."""
    monkeypatch.setattr(windows_module, "periods_of", lambda unit, _, weekday: Periods(unit, ZoneInfo(zone), weekday))


@pytest.mark.parametrize(("before", "after"), [("Etc/GMT-2", "Etc/GMT-3"), ("Etc/GMT-3", "Etc/GMT-2")])
@pytest.mark.parametrize("lateness", [0, 5 * HOUR])
def test_open_window_ends_where_it_ended_before(before, after, lateness, monkeypatch):
    with_rules_of(before, monkeypatch)
    october, november = ms("2022-10-15"), ms("2022-11-15")
    end = MONTHS.ends_of(MONTHS.slice_of(october))[0]
    with harness_of(MONTHS, lateness=lateness) as harness:
        harness.process(Bid("a", october, 1), timestamp=october)
        harness.process(Bid("a", november, 2), timestamp=november)
        snapshot = harness.snapshot()
    with_rules_of(after, monkeypatch)
    function = function_of(MONTHS, lateness=lateness)
    with KeyedHarness.restore(snapshot, function, key=lambda bid: bid.item) as harness:
        harness.process(Bid("a", october + HOUR, 4), timestamp=october + HOUR)
        harness.process(Bid("a", november + HOUR, 8), timestamp=november + HOUR)
        harness.watermark(ms("2023-01-01"))
        changes = harness.kinds()
        assert [(kind, row.bids, row.total) for kind, row in changes] == [
            (RowKind.INSERT, 2, 5),
            (RowKind.INSERT, 2, 10),
        ]
        assert changes[0][1].window_end == end
        assert harness.snapshot().entries == ()


@pytest.mark.parametrize(("before", "after"), [("Etc/GMT-2", "Etc/GMT-3"), ("Etc/GMT-3", "Etc/GMT-2")])
def test_open_join_survives_new_rules(before, after, monkeypatch):
    def function():
        shop = Pipeline("shop")
        orders = shop.source("orders", Order, event_time="at").key_by("currency").window(MONTHS)
        rates = shop.source("rates", Rate, event_time="at").key_by("currency").window(MONTHS)
        return orders.join("priced", rates, emit=Priced.of).operators[-1].function

    key = (lambda order: order.currency, lambda rate: rate.currency)
    with_rules_of(before, monkeypatch)
    october = ms("2022-10-15")
    with KeyedHarness(function(), key=key) as harness:
        harness.process1(Order("a", october, 7), timestamp=october)
        snapshot = harness.snapshot()
    with_rules_of(after, monkeypatch)
    with KeyedHarness.restore(snapshot, function(), key=key) as harness:
        harness.process2(Rate("a", october + HOUR, 60), timestamp=october + HOUR)
        harness.watermark(ms("2023-01-01"))
        assert [kind for kind, _ in harness.kinds()] == [RowKind.INSERT]
        assert harness.snapshot().entries == ()


def test_later_end_makes_a_second_result(monkeypatch):
    with_rules_of("Etc/GMT-3", monkeypatch)
    at = ms("2022-10-31T21:30")  # October with the rules of Etc/GMT-2, whose end is at 22:00; here it is at 21:00
    with harness_of(MONTHS) as harness:
        harness.process(Bid("a", at - HOUR, 1), timestamp=at - HOUR)
        snapshot = harness.snapshot()
    with_rules_of("Etc/GMT-2", monkeypatch)
    with KeyedHarness.restore(snapshot, function_of(MONTHS), key=lambda bid: bid.item) as harness:
        harness.watermark(at - 1)
        harness.process(Bid("a", at, 2), timestamp=at)
        harness.watermark(ms("2023-01-01"))
        ends = [(row.total, row.window_end) for _, row in harness.kinds()]
        assert ends == [(1, ms("2022-10-31T21:00")), (2, ms("2022-10-31T22:00"))]
        assert len({row.window_start for _, row in harness.kinds()}) == 1
        assert harness.snapshot().entries == ()
