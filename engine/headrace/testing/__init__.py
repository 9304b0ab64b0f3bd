"""Harnesses that drive one operator, or a whole pipeline, without Spark, on a virtual clock."""

from headrace.testing._async_wait_harness import AsyncSnapshot, AsyncWaitHarness, CapacityFull, QuarantinedRecord
from headrace.testing._async_wait_statistics import AsyncWaitStatistics
from headrace.testing._harness_output import LateRecord, SideRecord, Watermark
from headrace.testing._keyed_harness import HarnessStatistics, KeyedHarness, Snapshot
from headrace.testing._materializer_harness import MaterializerHarness, MaterializerSnapshot, MaterializerStatistics
from headrace.testing._memory_topic import MemoryTopic
from headrace.testing._pipeline_harness import PipelineHarness, PipelineSnapshot

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
    "MemoryTopic",
    "PipelineHarness",
    "PipelineSnapshot",
    "QuarantinedRecord",
    "SideRecord",
    "Snapshot",
    "Watermark",
]
