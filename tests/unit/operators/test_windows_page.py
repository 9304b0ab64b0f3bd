"""The example of docs/windows.md is a pipeline, and gives the documented result."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from types import ModuleType

import pytest

from headrace import RowKind, Struct, TimeDomain, Timestamp
from headrace.operators import Calendar, CalendarUnit, Count, CountWindow, Session, Tumbling, after_rows, every
from headrace.testing import KeyedHarness, PipelineHarness
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "windows.md").read_text()
HOUR = 3_600_000
NOON = 1_580_000_000_000


@pytest.fixture
def page(monkeypatch):
    """Return the module of the page's code."""
    module = ModuleType("windows_page")
    monkeypatch.setitem(sys.modules, "windows_page", module)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/windows.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


def test_example_corrects_and_sets_aside(page):
    harness = PipelineHarness(page.pipeline, bucket=1)
    order = page.Order
    harness.feed("orders", [order("a", "ann", 0, 5), order("a", "bob", 1, 8), order("a", "ann", 2 * HOUR, 1)])
    harness.run()
    assert harness.sink("revenue_by_hour") == [page.Revenue("a", 0, HOUR, 2, 2, 13, 6.5, "bob")]
    too_late = order("a", "ann", 3, 1)
    harness.feed("orders", [order("a", "bob", 2, 9), order("a", "ann", 4 * HOUR, 1), too_late])
    harness.run()
    rows = sorted(harness.sink("revenue_by_hour"), key=lambda row: row.window_start)
    assert rows[0] == page.Revenue("a", 0, HOUR, 3, 2, 22, 22 / 3, "bob")
    assert harness.sink("late_orders") == [too_late]


def test_function_of_the_page_is_an_aggregate(page):
    stream = page.Pipeline("p").source("orders", page.Order, event_time="placed_at").key_by("shop")
    windowed = stream.window(Tumbling(page.timedelta(hours=1)))
    harness = PipelineHarness(windowed.aggregate("spreads", page.Spreads).sink("spreads"))
    harness.feed("orders", [page.Order("a", "ann", 0, 5), page.Order("a", "bob", 1, 8)])
    harness.run(end_of_input=True)
    assert harness.sink("spreads") == [page.Spreads("a", HOUR, 3)]


def test_grown_session_replaces_its_early_result(page):
    minutes, count = page.timedelta(minutes=1), page.Annotated[int, Count()]
    visits = type("Visits", (Struct,), {"__annotations__": {"window_end": Timestamp, "orders": count}}, frozen=True)
    stream = page.Pipeline("p").source("orders", page.Order, event_time="placed_at").key_by("shop")
    aggregated = stream.window(Session(30 * minutes)).aggregate("visits", visits, early=10 * minutes)
    minute, ten = HOUR // 60, 10 * HOUR
    with KeyedHarness(aggregated.operators[-1].function, key=lambda order: order.shop) as harness:
        for at, watermark in ((ten, ten + 10 * minute), (ten + 5 * minute, ten + 20 * minute)):
            harness.process(page.Order("a", "ann", at, 5), timestamp=at)
            harness.watermark(watermark - 1)
        output = [(kind.symbol, (row.window_end - ten) // minute, row.orders) for kind, row in harness.kinds()]
    assert output == [("+I", 30, 1), ("-D", 30, 1), ("+I", 35, 2)]


def test_retraction_divides_its_session(page):
    minutes, count = page.timedelta(minutes=1), page.Annotated[int, Count()]
    fields = {"window_start": Timestamp, "window_end": Timestamp, "orders": count}
    visits = type("Visits", (Struct,), {"__annotations__": fields}, frozen=True)
    stream = page.Pipeline("p").source("orders", page.Order, event_time="placed_at", row_kind="kind").key_by("shop")
    sessions = stream.window(Session(30 * minutes)).aggregate("visits", visits, allowed_lateness=60 * minutes)
    minute, ten = HOUR // 60, 10 * HOUR
    changes = [(0, RowKind.INSERT), (20, RowKind.INSERT), (40, RowKind.INSERT), (70, None), (20, RowKind.DELETE)]
    with KeyedHarness(sessions.operators[-1].function, key=lambda order: order.shop) as harness:
        for place, kind in changes:
            at = ten + place * minute
            if kind is None:
                harness.watermark(at - 1)
            else:
                harness.process(page.Order("a", "ann", at, 5), timestamp=at, kind=kind)
        output = [
            f"{kind.symbol}  {_clock(row.window_start)} to {_clock(row.window_end)}, {row.orders} order"
            for kind, row in harness.kinds()
        ]
    assert output == [
        "+I  10:00 to 11:10, 3 order",
        "-D  10:00 to 11:10, 3 order",
        "+I  10:00 to 10:30, 1 order",
        "+I  10:40 to 11:10, 1 order",
    ]


def _clock(at):
    return f"{datetime.fromtimestamp(at / 1000, UTC):%H:%M}"


def orders_by_shop(page):
    """Return the page's orders, keyed by shop."""
    return page.Pipeline("shops").source("orders", page.Order, event_time="placed_at").key_by("shop")


def test_early_results_equal_the_page(page):
    hours = orders_by_shop(page).window(Tumbling(page.timedelta(hours=1)))
    soon = hours.aggregate("soon", page.Revenue, early=page.timedelta(minutes=10))
    minute = HOUR // 60
    harness = PipelineHarness(soon.sink("revenue_so_far", key=("shop", "window_start")), bucket=1)
    harness.feed("orders", [page.Order("7", "ann", at * minute, 5) for at in (3, 11)])
    harness.run()
    assert [(row.window_start, row.orders) for row in harness.sink("revenue_so_far")] == [(0, 2)]
    harness.feed("orders", [page.Order("7", "ann", at * minute, 5) for at in (25, 61)])
    harness.run()
    assert [(row.window_start, row.orders) for row in harness.sink("revenue_so_far")] == [(0, 3)]


def test_day_of_changed_clocks_equals_the_page(page):
    start, end = (
        int(datetime.fromisoformat(f"{text}Z").timestamp() * 1000)
        for text in re.search(r"window of 23\s+hours: (\S+ \S+)\s+to\s+(\S+ \S+)\s+UTC", PAGE).groups()
    )
    days = orders_by_shop(page).window(Calendar(CalendarUnit.DAY, zone="Europe/Berlin"))
    harness = PipelineHarness(
        days.aggregate("revenue", page.Revenue).sink("days"), job={"sources": {"orders": {"max_ahead": "none"}}}
    )
    harness.feed("orders", [page.Order("a", "ann", at, 5) for at in (start - 1, start, end - 1, end)])
    harness.run(end_of_input=True)
    assert (start, end, 2) in [(row.window_start, row.window_end, row.orders) for row in harness.sink("days")]
    assert end - start == 23 * HOUR


def test_schedule_of_the_page_makes_its_windows(page):
    ten = NOON - NOON % (24 * HOUR) + 10 * HOUR
    windows = orders_by_shop(page).window(Tumbling(page.timedelta(minutes=10)), time=TimeDomain.PROCESSING_TIME)
    harness = PipelineHarness(windows.aggregate("arrivals", page.Revenue).sink("arrivals_by_ten_minutes"), now=ten)
    shown = []
    for minute, orders in ((0, 3), (5, 2), (10, 4), (60, 9)):
        harness.clock.reach(ten + minute * HOUR // 60)
        harness.feed("orders", [page.Order("a", "ann", 0, 5)] * orders)
        before = harness.sink("arrivals_by_ten_minutes")
        harness.run()
        new = [row for row in harness.sink("arrivals_by_ten_minutes") if row not in before]
        shown.append([((row.window_start - ten) * 60 // HOUR, row.orders) for row in new])
    assert shown == [[], [], [(0, 5)], [(10, 4)]]


def test_trend_of_the_page_begins_small(page):
    windows = orders_by_shop(page).window(CountWindow(100, 10, state_ttl=page.timedelta(days=90)))
    result = type("Trend", (Struct,), {"__annotations__": {"orders": page.Annotated[int, Count()]}}, frozen=True)
    harness = PipelineHarness(windows.aggregate("trend", result).sink("trend"))
    harness.feed("orders", [page.Order("a", "ann", 0, 5)] * 119)
    harness.run()
    assert sorted(row.orders for row in harness.sink("trend")) == [*range(10, 100, 10), 100, 100]


def test_panes_of_the_page_have_each_order_once(page):
    hours = orders_by_shop(page).window(Tumbling(page.timedelta(hours=1)))
    panes = hours.aggregate("panes", page.Revenue, early=after_rows(2, purging=True))
    harness = PipelineHarness(panes.sink("panes"))
    harness.feed("orders", [page.Order("a", "ann", at, 5) for at in range(5)])
    harness.run(end_of_input=True)
    assert sorted(row.orders for row in harness.sink("panes")) == [1, 2, 2]


def test_running_results_show_earlier_runs(page):
    hours = orders_by_shop(page).window(Tumbling(page.timedelta(hours=1)))
    running = hours.aggregate("running", page.Revenue, early=every(page.timedelta(minutes=5)))
    harness, shown = PipelineHarness(running.sink("running", key=("shop", "window_start")), now=NOON), []
    for _ in range(3):
        harness.feed("orders", [page.Order("a", "ann", 0, 5)])
        harness.run()
        shown.append([row.orders for row in harness.sink("running")])
        harness.clock.advance(HOUR // 12)
    assert shown == [[], [1], [2]]
