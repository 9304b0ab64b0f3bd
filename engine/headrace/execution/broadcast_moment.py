"""Context in which a broadcast record is processed: it has a time, but no key."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.api import RowKind
from headrace.execution.element import Element


class BroadcastMoment:
    """A broadcast record at its place in arrival order.

    Everything that needs a key, or that every task would emit, raises `RuntimeError`. Keyed state reads `key_json`
    first.
    """

    __slots__ = ("processing_time", "row_kind", "timestamp", "watermark")

    def __init__(self, element: Element, watermark: int, processing_time: int) -> None:
        """Set its time: the last watermark before it, and the processing time of the micro-batch (ms)."""
        self.timestamp = element.timestamp
        self.row_kind = RowKind(element.kind)
        self.watermark = watermark
        self.processing_time = processing_time

    @property
    def key(self) -> NoReturn:
        """Refuse: there is no key. Raises `RuntimeError`."""
        raise _no_key("ctx.key")

    @property
    def key_json(self) -> NoReturn:
        """Refuse: keyed state needs a key. Raises `RuntimeError`."""
        raise _no_key("keyed state")

    @property
    def timers(self) -> NoReturn:
        """Refuse: a timer belongs to a key. Raises `RuntimeError`."""
        raise _no_key("ctx.timers")

    def collect(self, *_: Any) -> NoReturn:
        """Refuse: every task would emit the record. Raises `RuntimeError`."""
        raise _no_output("ctx.collect()")

    def output(self, *_: Any) -> NoReturn:
        """Refuse: every task would emit the record. Raises `RuntimeError`."""
        raise _no_output("ctx.output()")


def _no_key(what: str) -> RuntimeError:
    return RuntimeError(f"process_broadcast() has no key, so it cannot use {what}: it may change broadcast state only")


def _no_output(what: str) -> RuntimeError:
    return RuntimeError(
        f"process_broadcast() cannot use {what}: it runs in every task, and each of them would emit the record. Keep what "
        "is to be emitted in broadcast state, and emit it in process()"
    )
