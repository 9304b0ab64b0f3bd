"""Calls to the outside world for each record (Flink Async I/O, FLIP-232)."""

from engine.async_io.async_wait import AsyncWaitOperator
from engine.async_io.keyed_ordered import KeyedOrderedWait

__all__ = ["AsyncWaitOperator", "KeyedOrderedWait"]
