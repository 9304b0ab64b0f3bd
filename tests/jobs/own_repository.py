"""A job whose code lies in its own project folder, which is not on `sys.path`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.jobs.home import Home

CODE: Final = """
from headrace import Context, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from {package}.prices import PRICE


class Order(Struct, frozen=True):
    at: Timestamp
    customer: str
    pieces: int


class Bill(Struct, frozen=True):
    customer: str
    total: int


class Bills(KeyedProcessFunction[Order, Bill]):
    total = ValueState("total", int)

    async def process(self, order: Order, ctx: Context, /) -> None:
        total = (await self.total.value() or 0) + order.pieces * PRICE
        await self.total.update(total)
        ctx.collect(Bill(order.customer, total))


pipeline = Pipeline("{job}").source("orders", Order, event_time="at").key_by("customer").process("billing", Bills()).sink("bills")
"""
ORDERS: Final = (("ann", 1), ("bob", 2), ("ann", 3))
BILLS: Final = [("ann", 28), ("ann", 7), ("bob", 14)]
"""What the job makes of `ORDERS`, in the order of `sink_rows`."""


def own_home(folder: Path, package: str, profile: dict[str, Any] | None = None, *, packed: bool = False) -> Home:
    """Make a project folder with the package in it or, `packed`, in an archive that the cluster profile names."""
    home = Home(folder, _job(package))
    modules = {"__init__.py": "", "prices.py": "PRICE = 7\n", "job.py": CODE.format(package=package, job=package)}
    if packed:
        with zipfile.ZipFile(folder / "code.zip", "w") as archive:
            for name, text in modules.items():
                archive.writestr(f"{package}/{name}", text)
    else:
        (folder / package).mkdir()
        for name, text in modules.items():
            (folder / package / name).write_text(text)
    if profile is not None:
        home.write_cluster("local", {**profile, "py_files": ["code.zip"]} if packed else profile)
    rows = [{"at": 1_000 * number, "customer": who, "pieces": pieces} for number, (who, pieces) in enumerate(ORDERS)]
    schema = pa.schema([("at", pa.timestamp("ms", tz="UTC")), ("customer", pa.string()), ("pieces", pa.int64())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), home.input / "orders.parquet")
    return home


def _job(package: str) -> dict[str, Any]:
    return {
        "job": package,
        "pipeline": f"{package}.job:pipeline",
        "state": {"root": "state", "local": "local"},
        "sources": {"orders": {"path": "input"}},
        "sinks": {"bills": {"path": "lake/bills", "mode": "append"}},
    }
