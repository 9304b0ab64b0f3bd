"""The code of docs/idioms.md runs, and does what the page says."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from headrace.testing import PipelineHarness
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "idioms.md").read_text()
HOUR = 3_600_000


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


def test_links_of_the_page_lead_to_pages():
    pages = set(re.findall(r"\]\(([a-z-]+\.md)", PAGE))
    assert {name for name in pages if not (PROJECT / "docs" / name).exists()} == set()
