"""A run of a job on Spark: in a session of its own, or in one that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import clock
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig
from headrace.plan.stages import Plan
from headrace.spark.job_run import run_on
from headrace.spark.options import RunOptions, RunReport
from headrace.spark.run_events import OnEvent
from headrace.spark.spark_on_demand import SparkOnDemand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(config: JobConfig, options: RunOptions, on_event: OnEvent) -> RunReport:
    """Run a job once; return what it did. Spark starts when the first micro-batch needs it; with a driver on the cluster, at once.

    Raises a `HeadraceError` that says who has to act; whatever was committed before it stays.
    """
    started = clock.monotonic()
    plan = checked_plan(config)
    spark = SparkOnDemand(config, on_event)
    if config.profile.deploy_mode == "cluster":
        spark.start()  # YARN gives a driver up that has no SparkContext within 100 s, or at its end
    return _run_with(spark, plan, config, options, on_event, started=started)


def run_in(spark: SparkSession, config: JobConfig, options: RunOptions, on_event: OnEvent) -> RunReport:
    """Run a job once in a session that is there already."""
    plan = checked_plan(config)
    return _run_with(SparkOnDemand(config, on_event, spark), plan, config, options, on_event)


def _run_with(
    spark: SparkOnDemand,
    plan: Plan,
    config: JobConfig,
    options: RunOptions,
    on_event: OnEvent,
    *,
    started: float | None = None,
) -> RunReport:
    return run_on(
        spark,
        config,
        options,
        on_event,
        started=started,
        writers=spark.writers,
        topics=spark.topics(),
        steps=spark.steps(plan),
        shows_progress=True,
    )
