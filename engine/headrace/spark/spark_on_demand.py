"""Spark for a run that may not need it: it starts with the first micro-batch, or the first large merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from headrace.config import JobConfig
from headrace.errors import SparkNeededError
from headrace.plan.stages import Plan
from headrace.sinks.sink import SparkWriters
from headrace.sources.derived import Derivation
from headrace.sources.topic import Topic
from headrace.spark.options import Event
from headrace.spark.reports import KeyedTask, SourceTask, TaskReport
from headrace.spark.run_events import OnEvent
from headrace.spark.transit import Takes

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from headrace.spark.spark_tasks import SparkTasks


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

    def keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """Run a keyed stage on Spark."""
        return self._tasks().keyed(task, takes, transit)

    @property
    def writers(self) -> SparkWriters:
        """Return Spark's writers for sinks."""
        return SparkWriters(self._merge, self._send)

    def topics(self) -> Mapping[str, Topic]:
        """Return the topics that the job reads, by name of the source. Starts Spark if there are any: only Spark can read their offsets."""
        if all(source.format != "kafka" for source in self._config.sources.values()):
            return {}
        from headrace.spark.kafka_topic import topics_of

        return topics_of(self._session(), self._config)

    def steps(self, plan: Plan) -> Mapping[str, Derivation]:
        """Return Spark's steps over sources, by name of the source. Starts Spark if there are any: the names of their files depend on its plans."""
        if all(source.step is None for source in plan.sources):
            return {}
        from headrace.spark.source_step import steps_of

        return steps_of(self._session(), self._config, plan)

    def _merge(self, uri: str, files: Sequence[str], keys: Sequence[str], *, app_id: str, version: int) -> None:
        from headrace.spark.sinks import merge_through

        merge_through(self._session())(uri, files, keys, app_id=app_id, version=version)

    def _send(self, sink: str, files: Sequence[str], headers: Mapping[str, str]) -> None:
        from headrace.spark.kafka_sender import sender_through

        sender_through(self._session(), self._config)(sink, files, headers)

    def _tasks(self) -> SparkTasks:
        if self._on_spark is None:
            from headrace.spark.spark_tasks import SparkTasks

            self._on_spark = SparkTasks(self._started())
        return self._on_spark

    def _session(self) -> SparkSession:
        from headrace.spark.session import session_on

        return session_on(self._started())

    def _started(self) -> SparkContext:
        with self._starting:
            if self._context is None:
                if not self._may_start:
                    raise SparkNeededError(
                        f"job '{self._config.job}' has work, or sources that only Spark can look at, and --without-spark starts no Spark. "
                        "Nothing was taken in. Run it without that option."
                    )
                self._on_event(Event("starting", "starting Spark"))
                from headrace.spark.session import context

                self._context = context(self._config)
                if url := self._context.uiWebUrl:
                    self._on_event(Event("spark_ui", f"Spark UI at {url}", {"url": url}))
            return self._context
