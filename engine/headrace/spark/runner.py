"""Run of a job on Spark, in a new session or in an existing one."""

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


def run(config: JobConfig, options: RunOptions, on_event: OnEvent, *, may_start: bool = True) -> RunReport:
    """Run a job once; return its report. Spark starts when the first micro-batch needs it; at once if the driver is on the cluster.

    Unless it `may_start`, `SparkNeededError` is raised in its place, before anything is taken in.

    Raises a `HeadraceError` that says who has to act. Checkpoints committed before the error stay.
    """
    started = clock.monotonic()
    plan = checked_plan(config)
    spark = SparkOnDemand(config, on_event, may_start=may_start)
    if config.profile.deploy_mode == "cluster":
        spark.start()  # YARN kills a driver without a SparkContext after 100 s, and fails one that ends without it
    return _run_with(spark, plan, config, options, on_event, started=started)


def run_in(spark: SparkSession, config: JobConfig, options: RunOptions, on_event: OnEvent) -> RunReport:
    """Run a job once in an existing session."""
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
