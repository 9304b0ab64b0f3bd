"""Harnesses that drive one operator without Spark, on a virtual clock, a step at a time."""

from headrace.testing._async_wait_harness import (
    AsyncSnapshot,
    AsyncWaitHarness,
    AsyncWaitStatistics,
    CapacityFull,
    QuarantinedRecord,
)
from headrace.testing._keyed_harness import HarnessStatistics, KeyedHarness, LateRecord, SideRecord, Snapshot, Watermark
from headrace.testing._materializer_harness import MaterializerHarness, MaterializerSnapshot, MaterializerStatistics

__all__ = [
    "AsyncSnapshot",
    "AsyncWaitHarness",
    "AsyncWaitStatistics",
    "CapacityFull",
    "HarnessStatistics",
    "KeyedHarness",
    "LateRecord",
    "MaterializerHarness",
    "MaterializerSnapshot",
    "MaterializerStatistics",
    "QuarantinedRecord",
    "SideRecord",
    "Snapshot",
    "Watermark",
]
