"""The code of docs/idioms.md runs, and does what the page says."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from headrace.testing import PipelineHarness
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "idioms.md").read_text()
HOUR, DAY = 3_600_000, 86_400_000


@pytest.fixture
def page(monkeypatch):
    """The module that the page's code makes."""
    module = ModuleType("idioms_page")
    monkeypatch.setitem(sys.modules, "idioms_page", module)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    exec(compile(code, "docs/idioms.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


def run(pipeline, **inputs):
    harness = PipelineHarness(pipeline, bucket=1)
    for source, records in inputs.items():
        harness.feed(source, records)
    harness.run()
    harness.run(end_of_input=True)
    return harness


def test_page_finds_best_customers_of_a_day(page):
    spent = {"ann": 500, "bob": 900, "cem": 100, "dan": 700}
    orders = [page.Order(number, name, HOUR, cents) for number, (name, cents) in enumerate(spent.items())]
    payments = [page.Payment(number, 2 * HOUR) for number in range(len(orders))]
    harness = run(page.shop, orders=[*orders, page.Order(9, "eve", HOUR, 10_000)], payments=payments)
    ranks = sorted((row.rank, row.customer, row.cents) for row in harness.sink("best"))
    assert ranks == [(1, "bob", 900), (2, "dan", 700), (3, "ann", 500)]


def test_page_reports_a_quiet_customer_after_a_day(page):
    orders = [page.Order(1, "ann", HOUR, 5), page.Order(2, "ann", 3 * HOUR, 5), page.Order(3, "bob", 4 * HOUR, 5)]
    harness = run(page.quiet, orders=orders)
    assert harness.sink("quiet") == [page.Gap("ann", 3 * HOUR + DAY), page.Gap("bob", 4 * HOUR + DAY)]


def test_page_keeps_first_order_of_each_amount(page):
    orders = [
        page.Order(1, "ann", 1, 5),
        page.Order(2, "ann", 2, 7),
        page.Order(3, "ann", 3, 5),
        page.Order(4, "bob", 4, 5),
    ]
    assert [order.order_id for order in run(page.amounts, orders=orders).sink("first_amounts")] == [1, 2, 4]


def test_orders_are_deduplicated_and_totals_summed(page):
    orders = [page.Order(1, "ann", 1, 5), page.Order(2, "bob", 2, 7), page.Order(1, "ann", 3, 5)]
    harness = run(page.totals, orders=orders, more_orders=[*orders[:2], page.Order(3, "ann", 4, 6)])
    assert sorted(order.order_id for order in harness.sink("orders_once")) == [1, 2]
    assert sorted((total.customer, total.cents) for total in harness.sink("totals")) == [("ann", 11), ("bob", 7)]


def test_links_of_the_page_lead_to_pages():
    pages = set(re.findall(r"\]\(([a-z-]+\.md)", PAGE))
    assert {name for name in pages if not (PROJECT / "docs" / name).exists()} == set()
