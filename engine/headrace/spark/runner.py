"""Run of a job on Spark, which starts when a micro-batch needs it.

Spark for a run that may not need it: it starts with the first micro-batch, or the first large merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from headrace import clock
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig
from headrace.errors import SparkNeededError
from headrace.plan.stages import Plan
from headrace.run.events import OnEvent
from headrace.run.job_run import run_on
from headrace.run.messages import KeyedTask, SourceTask, TaskReport, TransitFile
from headrace.run.options import Event, RunOptions, RunReport
from headrace.run.trace import NO_TRACE, Trace
from headrace.sinks.sink import SparkRows, SparkWriters
from headrace.sources.kafka.landed import Topic
from headrace.sources.transformed.source import Derivation

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from headrace.spark.tasks import SparkTasks


class SparkOnDemand:
    """Implementation of `StageTasks` that starts Spark when a task, merge or topic first needs it. A run without work starts no JVM.

    Every call raises `ConfigError` or `ClusterError` when Spark cannot be started: see `headrace.spark.session`; and
    `SparkNeededError` if it may not be started.
    """

    def __init__(
        self, config: JobConfig, on_event: OnEvent, spark: SparkSession | None = None, *, may_start: bool = True
    ) -> None:
        """Start nothing yet. `spark` is an existing session. `on_event` gets an event when Spark starts, and the address of its UI."""
        self._may_start = may_start
        self._config = config
        self._on_event = on_event
        self._starting = Lock()  # large sinks are merged in parallel
        self._context = None if spark is None else spark.sparkContext
        self._on_spark: SparkTasks | None = None

    def start(self) -> None:
        """Start Spark, as `StageTasks.start` describes."""
        self._started()

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks of sources on Spark."""
        return self._tasks().sources(tasks)

    def keyed(self, task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run a keyed stage on Spark."""
        return self._tasks().keyed(task, transit)

    @property
    def writers(self) -> SparkWriters:
        """Return Spark's writers for sinks."""
        return SparkWriters(self._write, self._send)

    def topics(self) -> Mapping[str, Topic]:
        """Return the topics that the job reads, by name of the source. Starts Spark if there are any: only Spark can read their offsets."""
        if all(source.kind.only_on_spark is None for source in self._config.all_sources):
            return {}
        from headrace.spark.kafka_topic import topics_of

        return topics_of(self._session(), self._config)

    def steps(self, plan: Plan) -> Mapping[str, Derivation]:
        """Return Spark's steps over sources, by name of the source. Starts Spark if there are any: the names of their files depend on its plans."""
        if all(source.transform is None for source in plan.sources):
            return {}
        from headrace.spark.transforms import transforms_of

        return transforms_of(self._session(), self._config, plan)

    def _write(self, rows: SparkRows) -> None:
        from headrace.spark.writers import writer_through

        writer_through(self._session())(rows)

    def _send(self, sink: str, files: Sequence[str], headers: Mapping[str, str]) -> None:
        from headrace.spark.writers import sender_through

        sender_through(self._session(), self._config)(sink, files, headers)

    def _tasks(self) -> SparkTasks:
        if self._on_spark is None:
            from headrace.spark.tasks import SparkTasks

            self._on_spark = SparkTasks(self._started())
        return self._on_spark

    def _session(self) -> SparkSession:
        from headrace.spark.session import session_on

        return session_on(self._started())

    def _started(self) -> SparkContext:
        with self._starting:
            if self._context is None:
                if not self._may_start:
                    raise not_allowed(self._config.job)
                self._on_event(Event("starting", "starting Spark"))
                from headrace.spark.session import context

                self._context = context(self._config)
                if url := self._context.uiWebUrl:
                    self._on_event(Event("spark_ui", f"Spark UI at {url}", {"url": url}))
            return self._context


def not_allowed(job: str) -> SparkNeededError:
    """Return the error of a job that needs Spark in a run that may not start it."""
    return SparkNeededError(
        f"job '{job}' has work, or sources that only Spark can look at, and --without-spark starts no Spark. Nothing was taken in. Run it "
        "without that option."
    )


def run(
    config: JobConfig,
    options: RunOptions,
    on_event: OnEvent,
    *,
    may_start: bool = True,
    trace: Trace | None = None,
) -> RunReport:
    """Run a job once; return its report. Spark starts when the first micro-batch needs it; at once if the driver is on the cluster.

    Unless it `may_start`, `SparkNeededError` is raised in its place, before anything is taken in. `trace` observes the parts of the run.

    Raises a `HeadraceError` that says who has to act. Checkpoints committed before the error stay.
    """
    started = clock.monotonic()
    plan = checked_plan(config)
    spark = SparkOnDemand(config, on_event, may_start=may_start)
    if config.profile.deploy_mode == "cluster":
        spark.start()  # YARN kills a driver without a SparkContext after 100 s, and fails one that ends without it
    return _run_with(spark, plan, config, options, on_event, started=started, trace=trace)


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
    trace: Trace | None = None,
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
        trace=trace or NO_TRACE,
    )
