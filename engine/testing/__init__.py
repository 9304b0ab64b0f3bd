"""Harnesses that drive one operator without Spark, on a virtual clock, a step at a time."""

from engine.testing._keyed_harness import HarnessStatistics, KeyedHarness, LateRecord, SideOutput, Snapshot, Watermark

__all__ = ["HarnessStatistics", "KeyedHarness", "LateRecord", "SideOutput", "Snapshot", "Watermark"]
