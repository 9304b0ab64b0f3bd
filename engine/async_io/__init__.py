"""Calls to the outside world for each record (Flink Async I/O, FLIP-232)."""

from engine.async_io.async_wait import AsyncWaitOperator
from engine.async_io.attempts import Attempts
from engine.async_io.element import AsyncElement, Status
from engine.async_io.keyed_ordered import KeyedOrderedWait
from engine.async_io.service_limit import ServiceLimit
from engine.async_io.service_metrics import ServiceMetrics

__all__ = [
    "AsyncElement",
    "AsyncWaitOperator",
    "Attempts",
    "KeyedOrderedWait",
    "ServiceLimit",
    "ServiceMetrics",
    "Status",
]
