"""The purchases, each answered by a service first: results are equal if no element is lost, doubled or out of order.

The service is a folder, which the job's file names in place of a URL. Every call appends a line there at once, so the
requests are known after any crash. A file `down` in the folder makes calls fail from a purchase's number on.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from headrace import AsyncFunction, CircuitBreaker, FixedDelay, OnFailure, OutputMode, Pipeline
from tests.jobs.purchases import LATENESS, Customers, Purchase, Reminder

SOON: Final = timedelta(milliseconds=50)
LATER: Final = timedelta(seconds=2)


class Unavailable(Exception):  # noqa: N818 - a test's own
    """The service is down."""


class Ask(AsyncFunction[Purchase, Purchase]):
    """Answers with the purchase."""

    deterministic = True

    def __init__(self, service: str = "oracle") -> None:
        self._name = service

    async def open(self, services: dict[str, str], /) -> None:
        self._service = Service(Path(urlsplit(services[self._name]).path))

    async def invoke(self, purchase: Purchase, /) -> list[Purchase]:
        self._service.note("asked", purchase.seq)
        await asyncio.sleep(0.001 * (purchase.seq % 3))
        if purchase.seq >= self._service.down_from():
            raise Unavailable(f"no response for {purchase.seq}")
        self._service.note("answered", purchase.seq)
        return [purchase]


class AskSlowly(Ask):
    """Answers slowly."""

    async def invoke(self, purchase: Purchase, /) -> list[Purchase]:
        await asyncio.sleep(0.2)
        return await super().invoke(purchase)


class Service:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Return the service's URL in the job's file."""
        return f"http://localhost{self.folder}"

    def goes_down(self, number: int) -> None:
        """Fail from this purchase on."""
        (self.folder / "down").write_text(str(number))

    def comes_back(self) -> None:
        """Answer again."""
        (self.folder / "down").unlink()

    def down_from(self) -> float:
        """Return the first number that fails."""
        try:
            return float((self.folder / "down").read_text())
        except FileNotFoundError:
            return float("inf")

    def note(self, what: str, number: int) -> None:
        """Append a line and sync it, so that it survives a crash."""
        line = os.open(self.folder / what, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(line, f"{number}\n".encode())
        os.close(line)

    def noted(self, what: str) -> Counter[int]:
        """Count the lines of each number."""
        path = self.folder / what
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def asking(mode: OutputMode, function: Ask | None = None, *, then: Ask | None = None, **options: Any) -> Pipeline:
    """Return the pipeline of `purchases` with a wait in this mode; with `then`, with a second wait."""
    given = {
        "mode": mode,
        "capacity": 8,
        "timeout": timedelta(seconds=20),
        "retry": FixedDelay(max_retries=50, delay=LATER, exceptions=(Unavailable,)),
        "park_after": SOON,
        **options,
    }
    source = Pipeline("purchases").source(
        "purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS
    )
    keyed = source.key_by("customer") if mode is OutputMode.KEYED_ORDERED else source
    asked = keyed.async_wait("ask", function or Ask(), **given)
    return (
        (asked.async_wait("then", then, **given) if then else asked)
        .key_by("customer")
        .process("customers", Customers())
        .side_output("reminders", Reminder, sink="reminders")
        .upsert_materialize("lines", primary_key=("item",))
        .sink("lines_by_item")
    )


ordered: Final = asking(OutputMode.ORDERED)
unordered: Final = asking(OutputMode.UNORDERED)
processing_time: Final = asking(OutputMode.UNORDERED_PROCESSING_TIME)
keyed: Final = asking(OutputMode.KEYED_ORDERED)
kept: Final = asking(OutputMode.KEYED_ORDERED, service="oracle")
careful: Final = asking(
    OutputMode.ORDERED,
    retry=FixedDelay(max_retries=1, delay=timedelta(0), exceptions=(Unavailable,)),
    on_failure=OnFailure.QUARANTINE,
)
breaking: Final = asking(
    OutputMode.ORDERED,
    capacity=2,
    breaker=CircuitBreaker(failures=3, probe_after=LATER),
)
slow: Final = asking(OutputMode.ORDERED, AskSlowly(), capacity=1)
twice: Final = asking(
    OutputMode.ORDERED,
    then=Ask("second"),
    retry=FixedDelay(max_retries=50, delay=timedelta(hours=1), exceptions=(Unavailable,)),
    on_failure=OnFailure.QUARANTINE,
)
