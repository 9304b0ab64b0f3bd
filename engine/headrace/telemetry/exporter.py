"""Thread that exports what a run sends. The run never waits for it, except at its end for a bounded time.

    run     spans, points ──> queue ──> thread: imports opentelemetry, makes its spans, asks the collector
    run     end: waits until the thread is done, for at most PATIENCE seconds beyond the import

A collector that is down or hangs holds the thread alone, which ends with the process. All that goes wrong is one sentence.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Final, Protocol
from urllib.parse import unquote

from headrace.errors import without_credentials
from headrace.names import counted
from headrace.telemetry.trace import Ended, Item

PATIENCE: float = 0.5
"""Seconds that a run waits at its end for the collector."""
OPENING: float = 5.0
"""Seconds that it waits before, if OpenTelemetry is still being imported: that takes 0.3 s of a processor, on a busy machine longer."""
_MOST_WAITING: Final = 64
"""Number of micro-batches whose spans wait for a slow collector; those of others are left out."""
_MISSING: Final = "the packages of OpenTelemetry are missing ({missing}): pip install 'headrace[otel]', or unset OTEL_EXPORTER_OTLP_ENDPOINT"


class Sdk(Protocol):
    """OpenTelemetry's SDK. All calls come from one thread, and each may take long, or raise."""

    def take(self, item: Item) -> None:
        """Take what the run has sent."""
        ...

    def export(self) -> None:
        """Send what it has taken to the collector."""
        ...

    def stop(self) -> None:
        """Give up what is being exported, as soon as that is possible. Comes from another thread."""
        ...


class Notes:
    """What goes wrong in the thread: the first failure, as others follow from it, and the last attempt that may still succeed."""

    def __init__(self) -> None:
        self.failure = self.trouble = ""

    def add(self, text: str, *, is_failure: bool = True) -> None:
        """Note a failure, or an attempt that failed."""
        line = " ".join(_without_secrets(text).split()).rstrip(".")[:_LONGEST_NOTE]
        if is_failure:
            self.failure = self.failure or line
        else:
            self.trouble = line


_LONGEST_NOTE: Final = 400
_NO_SECRET: Final = 3
"""Characters of a value that is none: without it, words of the message would be cut up."""
_QUERY: Final = re.compile(r"(?<=[^\s?])\?[^\s'\")]+")


def _without_secrets(text: str) -> str:
    """Return a text without credentials, the queries of URLs, and what the environment has as headers: the exporters' messages have them."""
    for header in _headers():
        text = text.replace(header, "...")
    return _QUERY.sub("?...", without_credentials(text))


def _headers() -> Iterator[str]:
    """Yield the values of headers, the longest first: as the environment has them, as they are sent, and as Python shows them."""
    given = [os.environ[name] for name in os.environ if name.startswith("OTEL_") and name.endswith("_HEADERS")]
    headers = (header.partition("=") for text in given for header in text.split(","))
    raw = {(value if equals else name).strip() for name, equals, value in headers}
    sent = {unquote(value).strip() for value in raw}
    known = raw | sent | {repr(value)[1:-1] for value in sent}
    yield from sorted((value for value in known if len(value) > _NO_SECRET), key=len, reverse=True)


OpenSdk = Callable[[Mapping[str, str], Notes], Sdk]
"""Function that opens the SDK. It gets the protocols by signal."""


def open_sdk(protocols: Mapping[str, str], notes: Notes) -> Sdk:
    """Import OpenTelemetry, which takes some 0.3 s, and open its SDK. Raises `ImportError` without its packages."""
    from headrace.telemetry.sdk import OpenTelemetry

    return OpenTelemetry(protocols, notes)


class Exporter:
    """Exporter of one run."""

    def __init__(self, protocols: Mapping[str, str], *, open_sdk: OpenSdk = open_sdk) -> None:
        """Start the thread. `protocols` has that of each signal."""
        self._protocols, self._open_sdk = protocols, open_sdk
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._left_out = 0
        self._notes = Notes()
        self._sdk: Sdk | None = None
        self._is_open = threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="headrace-telemetry")
        self._thread.start()

    def send(self, item: Item) -> None:
        """Hand an item over. Never waits: spans are left out if too many wait already."""
        if isinstance(item, Ended) and item.part.name != "run" and self._items.qsize() >= _MOST_WAITING:
            self._left_out += 1
            return
        self._items.put(item)

    def finish(self, patience: float | None = None) -> str:
        """Wait for the export of all items, for at most `patience` seconds (`PATIENCE`). Return what went wrong; empty if nothing did."""
        patience = PATIENCE if patience is None else patience
        self._items.put(None)
        self._is_open.wait(OPENING)
        self._thread.join(patience)
        sentence = self._sentence(patience)  # before it is told to stop, which it calls a failure
        self._is_abandoned = self._thread.is_alive()
        if self._is_abandoned and self._sdk is not None:
            threading.Thread(target=self._sdk.stop, daemon=True, name="headrace-telemetry-end").start()
        return sentence

    def _sentence(self, patience: float) -> str:
        notes = self._notes
        if notes.failure:
            return notes.failure
        if self._thread.is_alive():
            more = f" ({notes.trouble})" if notes.trouble else ""
            return f"the collector did not take all within {patience:g} s after the run{more}"
        return (
            f"spans of {counted(self._left_out, 'micro-batch', 'micro-batches')} were left out"
            if self._left_out
            else ""
        )

    def _work(self) -> None:
        try:
            sdk = self._sdk = self._open_sdk(self._protocols, self._notes)
            self._is_open.set()
            while not self._is_abandoned and self._take(sdk):
                sdk.export()
            if not self._is_abandoned:
                sdk.export()
        except ImportError as error:
            self._notes.add(_MISSING.format(missing=error.name or error))
        except Exception as error:  # noqa: BLE001 - the settings are those of others, and no run fails for them
            self._notes.add(f"{type(error).__name__}: {error}")
        finally:
            self._is_open.set()

    def _take(self, sdk: Sdk) -> bool:
        """Wait for an item; take it, and all that wait already. Return False at the end of the run."""
        item = self._items.get()
        while item is not None:
            sdk.take(item)
            if self._items.empty():
                return True
            item = self._items.get()
        return False
