"""Harnesses that drive one operator without Spark, on a virtual clock, a step at a time."""

from engine.testing._async_wait_harness import (
    AsyncSnapshot,
    AsyncWaitHarness,
    AsyncWaitStatistics,
    CapacityFull,
    QuarantinedRecord,
)
from engine.testing._keyed_harness import HarnessStatistics, KeyedHarness, LateRecord, SideOutput, Snapshot, Watermark
from engine.testing._materializer_harness import MaterializerHarness, MaterializerSnapshot, MaterializerStatistics

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
    "SideOutput",
    "Snapshot",
    "Watermark",
]
