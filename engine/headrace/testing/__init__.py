"""World of a test, and harnesses that drive one operator, or a whole pipeline, without Spark, on a virtual clock."""

from headrace.testing._async_wait import (
    AsyncSnapshot,
    AsyncWaitHarness,
    AsyncWaitStatistics,
    CapacityFull,
    QuarantinedRecord,
)
from headrace.testing._keyed import HarnessStatistics, KeyedHarness, Snapshot
from headrace.testing._materializer import MaterializerHarness, MaterializerSnapshot, MaterializerStatistics
from headrace.testing._memory_topic import MemoryTopic
from headrace.testing._output import LateRecord, SideRecord, Watermark
from headrace.testing._pipeline import PipelineHarness, PipelineSnapshot
from headrace.testing._runs import PipelineBranch
from headrace.testing._world import World

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
    "PipelineBranch",
    "PipelineHarness",
    "PipelineSnapshot",
    "QuarantinedRecord",
    "SideRecord",
    "Snapshot",
    "Watermark",
    "World",
]
