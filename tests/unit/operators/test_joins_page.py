"""The examples of docs/joins.md are pipelines, and give the documented results."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from headrace import RowKind
from headrace.testing import KeyedHarness, PipelineHarness
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "joins.md").read_text()
DAY = 86_400_000
INSERT, BEFORE, AFTER, _ = RowKind


@pytest.fixture
def page(monkeypatch):
    """Return the module of the page's code."""
    module = ModuleType("joins_page")
    monkeypatch.setitem(sys.modules, "joins_page", module)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    exec(compile(code, "docs/joins.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


def test_payments_find_their_orders(page):
    harness = PipelineHarness(page.shop, bucket=1)
    late = page.Payment(1, 2 * DAY, "late")
    harness.feed("orders", [page.Order(1, 0, 500), page.Order(2, DAY, 700), page.Order(3, 30 * DAY, 900)])
    payments = [
        page.Payment(1, 7 * DAY, "visa"),
        page.Payment(2, 8 * DAY + 1, "visa"),
        page.Payment(9, 30 * DAY, "visa"),
    ]
    harness.feed("payments", [*payments, late])
    harness.run()
    harness.run(end_of_input=True)
    assert harness.sink("paid_orders") == [page.Paid(1, 500, "visa")]
    assert harness.sink("late_payments") == [late]
    settled = sorted((row.order_id, row.card) for row in harness.sink("settled_orders"))
    assert settled == [(1, "visa"), (2, None), (3, None)]


def changes(page):
    tea, old, new = page.Product("t", "tea", 0), page.Price("t", 300, 1), page.Price("t", 320, 2)
    return [("products", tea, INSERT), ("prices", old, INSERT), ("prices", old, BEFORE), ("prices", new, AFTER)]


@pytest.mark.parametrize(("count", "cents"), [(1, None), (2, 300), (3, None), (4, 320)])
def test_catalogue_follows_its_prices(page, count, cents):
    harness = PipelineHarness(page.catalogue, bucket=1)
    for source, record, kind in changes(page)[:count]:
        harness.feed(source, [record], kinds=[kind])
    harness.run(end_of_input=True)
    assert harness.sink("catalogue") == [page.Listed("t", "tea", cents)]


@pytest.mark.slow
def test_discounts_and_unpriced_products_are_found(page):
    tea, cup, pot = (page.Product(name[0], name, 0) for name in ("tea", "cup", "pot"))
    harness = PipelineHarness(page.catalogue, bucket=1)
    harness.feed("products", [tea, cup, pot], kinds=[INSERT] * 3)
    harness.feed("prices", [page.Price("t", 90, 1), page.Price("c", 300, 1)], kinds=[INSERT] * 2)
    harness.run(end_of_input=True)
    assert (harness.sink("discounts"), harness.sink("unpriced")) == ([tea], [pot])


def test_row_kinds_equal_the_table_on_the_page(page):
    function = page.listed.operators[2].function
    with KeyedHarness(function, key=(lambda product: product.sku, lambda price: price.sku)) as harness:
        for source, record, kind in changes(page):
            (harness.process1 if source == "products" else harness.process2)(record, record.at, kind=kind)
        output = [f"{kind.symbol}  {row.name}, {row.cents or 'no price'}" for kind, row in harness.kinds()]
    shown = PAGE[PAGE.index("+I  tea") :].partition("```")[0]
    assert [line.partition("   ")[0] for line in shown.splitlines()] == output


def test_join_without_bound_or_optional_side_is_refused(page):
    with pytest.raises(ValueError, match="nothing bounds the state, so both sides would be kept for good"):
        page.products.join("listed", page.prices, emit=page.Listed.of)

    def of(product, price):
        raise NotImplementedError

    of.__annotations__ |= {"product": page.Product, "price": page.Price, "return": page.Listed}
    with pytest.raises(TypeError, match="parameter 'price' of of is Price, but it gets None"):
        page.products.join("listed", page.prices, emit=of, how=page.JoinType.LEFT, state_ttl=page.Lifetime.FOREVER)
