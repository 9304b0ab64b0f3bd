"""The first commands of docs/backfill.md, in a project that reads a Delta table (no JVM)."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.unit.docs.test_shop_pages import Shop, own_modules
from tests.unit.support.doc_pages import blocks_of, calls_of

__all__ = ["own_modules"]

pytestmark = pytest.mark.slow

PIPELINE = """\
import datetime as dt
from typing import Annotated

from headrace import Lifetime, Pipeline, Struct
from headrace.operators import Sum


class Order(Struct, frozen=True):
    order_id: str
    placed_at: dt.datetime
    customer: str
    amount: float
    day: str


class Spent(Struct, frozen=True):
    customer: str
    day: str
    amount: Annotated[float, Sum("amount")]


pipeline = (
    Pipeline("spend")
    .source("orders", Order, event_time="placed_at")
    .key_by("customer", "day")
    .aggregate("spent", Spent, retract=False, state_ttl=Lifetime.FOREVER)
    .upsert_materialize("latest", primary_key=("customer", "day"), upsert_key=("customer", "day"))
    .sink("spent")
)
"""


@pytest.fixture
def spend(tmp_path, monkeypatch):
    """Return a project whose job has taken in three days of a table, as the page's YAML says."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (section,) = [block.text for block in blocks_of("backfill") if block.text.startswith("mode: interval\n")]
    job = {"job": "spend", "pipeline": "spend_of_page:pipeline", **yaml.safe_load(section)}
    files = {
        "conf/jobs/spend.yaml": yaml.safe_dump(job),
        "conf/clusters/local.yaml": "master: local[2]\nrunner: local\nparallelism: 2\n",
        "spend_of_page.py": PIPELINE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for day in range(1, 4):
        write_deltalake(tmp_path / "lake" / "orders", orders_of(day), mode="append", partition_by=["day"])
    result = Shop(tmp_path)
    for day in range(1, 4):
        assert (
            result.call(f"headrace run spend --interval-start 2026-03-0{day} --interval-end 2026-03-0{day + 1}")[0] == 0
        )
    yield result
    sys.modules.pop("spend_of_page", None)


def orders_of(day):
    times = [datetime(2026, 3, day, 9 + number, tzinfo=UTC) for number in range(4)]
    columns = {
        "order_id": [f"{day}-{number}" for number in range(4)],
        "placed_at": pa.array(times, pa.timestamp("us", "UTC")),
        "customer": ["ann", "bob", "cleo", "ann"],
        "amount": [20.0 * day, 35.5, 12.0, 8.25],
        "day": [f"2026-03-{day:02d}"] * 4,
    }
    return pa.table(columns)


@pytest.mark.slow
def test_page_corrects_a_day_of_a_table(spend):
    corrected = pa.table({"order_id": ["2-1"], "amount": [80.5]})
    same = "o.day = '2026-03-02' AND o.order_id = c.order_id"
    orders = DeltaTable(spend.folder / "lake" / "orders")
    merge = orders.merge(corrected, same, source_alias="c", target_alias="o")
    merge.when_matched_update({"amount": "c.amount"}).execute()
    spend.check(calls_of("backfill", "headrace backfill spend --pending --dry-run"))
    spend.check(calls_of("backfill", "headrace backfill spend --pending\n"))
    code, shown = spend.call(
        "headrace sql spend \"select amount from spent where customer = 'bob' and day = '2026-03-02'\""
    )
    assert (code, "80.5" in shown) == (0, True)
