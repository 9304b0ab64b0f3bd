"""From a pipeline to what runs: stages, columns of records, sinks. Knows no Spark."""

from engine.plan.pipelines import plan_of, sink_schemas
from engine.plan.stages import Plan

__all__ = ["Plan", "plan_of", "sink_schemas"]
