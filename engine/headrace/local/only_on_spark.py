"""Features that need Spark: the local runner refuses jobs with them."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config import JobConfig
from headrace.plan.stages import Plan


def only_on_spark(config: JobConfig, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each feature of a job that needs Spark."""
    if config.profile.deploy_mode == "cluster":
        yield f"the cluster profile '{config.profile.name}' has deploy_mode cluster: its driver runs on Spark's cluster"
    for source in plan.sources:
        if config.sources[source.name].format == "kafka":
            yield f"source '{source.name}' reads a topic of Kafka, which needs Spark: land it as files first, and read those"
        if source.step is not None:
            yield f"source '{source.name}' has a step of Spark, .spark() or .sql(): write it as map, filter or flat_map"
    for name, sink in config.sinks.items():
        if sink.format == "kafka":
            yield f"sink '{name}' sends its rows to a topic of Kafka, which needs Spark: write them to a Delta table (format: delta)"
