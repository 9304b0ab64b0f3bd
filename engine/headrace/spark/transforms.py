"""Spark's transforms over the sources of a job: plan them, refuse those that are not row by row, and land their rows."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace import crash_points
from headrace.config import JobConfig
from headrace.errors import ConfigError, HeadraceError, SourceError, StorageError
from headrace.interrupts import is_interrupt
from headrace.sources.kafka.landed import landed_folder, publish_landed
from headrace.sources.source import SourceFile
from headrace.sources.transformed.rows import DimensionTables, input_schema, misfits
from headrace.sources.transformed.source import Origin
from headrace.spark.errors import in_short, jvm_answers, spark_errors, text_of
from headrace.spark.transform_files import (
    LANDED_DDL,
    LandedFile,
    TransformTask,
    landing_nothing,
    landing_partition,
    reading_partition,
)
from headrace.spark.transform_plan import TABLE, TransformPlan, analyzed_plan, in_words
from headrace.storage.refusals import doing, storage_advice
from headrace.tables.folder import JobFolder

if TYPE_CHECKING:
    from headrace.api.graph import SourceNode, SparkTransform
    from headrace.plan.stages import Plan
    from headrace.sources.transformed.source import Derivation


_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": str(1 << 30),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Settings of the session in which transforms are planned, so that the same input gives the same rows on every machine."""
_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
"""How pyspark gives times in UTC; releases before 4.2 do so unasked."""


def transforms_of(spark: SparkSession, config: JobConfig, plan: Plan) -> dict[str, Derivation]:
    """Return Spark's transforms over the sources of a plan, by name of the source. Plans and reads nothing yet."""
    return {
        source.name: SourceTransform(spark, config, source) for source in plan.sources if source.transform is not None
    }


@dataclass(slots=True)
class SourceTransform:
    """Implementation of `Derivation` through Spark. The transform has its own session, which has only the tables that it may read, as views."""

    spark: SparkSession
    config: JobConfig
    node: SourceNode
    tables: DimensionTables = field(init=False)
    _session: SparkSession | None = None
    _digest: str | None = None

    def __post_init__(self) -> None:
        """Set the names of the tables."""
        paths = self.config.sources[self.node.name].tables
        named = {name: paths[name] for name in self._transform.tables}
        self.tables = DimensionTables(self.node.name, named, JobFolder.of(self.config))

    def digest(self) -> str:
        """Return the digest of the transform's plan, as `Derivation.digest` describes. Plans once."""
        if self._digest is None:
            result = self._result(self._task({}, Origin({**self.tables.latest()})))
            self._check(result)
            says = self._transform.query or in_words(analyzed_plan(self._own_session, result))
            takes = str(input_schema(self.node.stored))
            self._digest = blake2b(json.dumps([says, takes]).encode(), digest_size=4).hexdigest()
        return self._digest

    def derive(self, files: Mapping[str, SourceFile], origin: Origin) -> None:
        """Land the transform's rows of files, as `Derivation.derive` describes: one Spark job, a task for each file."""
        task = self._task(files, origin)
        result = self._result(task)
        self._check(result)
        schema = _arrow_schema(result)
        payload = msgspec.json.encode(task)
        with self._translated():
            reports = self._run(result.mapInArrow(landing_partition(payload, schema), LANDED_DDL))
            missing = sorted({*range(len(task.files))} - reports.keys())
            if missing:  # Spark has optimized the work on these files away
                rest = self._own_session.createDataFrame([(number,) for number in missing], "id long")
                reports |= self._run(rest.mapInArrow(landing_nothing(payload, schema), LANDED_DDL))
        self._raise_refused([reports[number] for number in sorted(reports)], task)
        for number, path in enumerate(files):
            publish_landed(task.folder, reports[number].file, path.rpartition("/")[2])
            crash_points.reached("land.half")

    # ------------------------------------------------------------------------------------------------ how it's done

    @property
    def _transform(self) -> SparkTransform:
        assert self.node.transform is not None  # noqa: S101 - `transforms_of` takes such sources alone
        return self.node.transform

    @property
    def _what(self) -> str:
        return f"source '{self.node.name}', Spark's transform {self._transform.name}"

    @property
    def _own_session(self) -> SparkSession:
        if self._session is None:
            self._session = self.spark.newSession()
            for key, value in _SETTINGS.items():
                self._session.conf.set(key, value)
        return self._session

    def _task(self, files: Mapping[str, SourceFile], origin: Origin) -> TransformTask:
        bound = self.config.sources[self.node.name]
        return TransformTask(
            self.config.code,
            self.node.name,
            tuple(file.taken(self.node.name, 0, 0) for file in files.values()),
            bound.on_bad_file,
            landed_folder(JobFolder.of(self.config), self.node.name),
            origin,
            bound.on_bad_file == "quarantine" or bound.max_quarantined is not None or bound.kind.lands_files,
        )

    def _result(self, task: TransformTask) -> DataFrame:
        """Return the transform's result on the source's files. Computes nothing yet."""
        session, count = self._own_session, max(len(task.files), 1)
        ids = session.range(0, len(task.files), 1, count)
        schema = from_arrow_schema(input_schema(self.node.stored))
        source = ids.mapInArrow(reading_partition(msgspec.json.encode(task)), schema)
        tables = {name: self._table(name, version) for name, version in task.origin.tables.items()}
        with self._planned():
            if self._transform.query is None:
                result = cast("Any", self._transform.function)(source, **tables)
                if not isinstance(result, DataFrame):
                    msg = f"{self._what}: the function returned {result!r:.100}, not a DataFrame"
                    raise ConfigError(msg)
                return result
            for name, frame in {self.node.name: source, **tables}.items():
                frame.createOrReplaceTempView(name)
            self._check_query(self._transform.query)
            return session.sql(self._transform.query)

    def _table(self, name: str, version: int) -> DataFrame:
        rows = self.tables.read(name, version)
        frame = self._own_session.createDataFrame(cast("Any", rows), from_arrow_schema(rows.schema))
        return spark_functions.broadcast(frame).alias(f"{TABLE}{name}")

    def _check_query(self, query: str) -> None:
        """Raise an error if the text is not a query, before Spark runs it: a command takes effect when it is planned."""
        self._own_session._jsparkSession.sessionState().sqlParser().parseQuery(query)  # noqa: SLF001 - pyspark has no other way

    def _check(self, result: DataFrame) -> None:
        plan = TransformPlan(self._own_session, self._what, (self.node.name, *self._transform.tables))
        with self._planned():
            plan.check(result)
            if problems := misfits(_arrow_schema(result), self.node):
                msg = f"{self._what}: {'; '.join(problems)}. Nothing was taken in: correct the transform, or the record"
                raise ConfigError(msg)
            plan.check_run(result)

    def _run(self, reports: DataFrame) -> dict[int, LandedFile]:
        decoded = (msgspec.json.decode(bytes(row.report), type=LandedFile) for row in reports.collect())
        return {report.number: report for report in decoded}

    def _raise_refused(self, reports: list[LandedFile], task: TransformTask) -> None:
        for report in reports:
            if report.is_bad_file:
                raise SourceError(
                    f"source '{self.node.name}': cannot read {task.files[report.number].path}: {report.error}. Nothing was taken in. "
                    f"Repair or remove the file, or set 'sources.{self.node.name}.on_bad_file: quarantine' to go on without it."
                )
            if report.error is not None:
                raise StorageError(f"{report.error}. Nothing was committed; {storage_advice(report.error)}.")

    @contextmanager
    def _planned(self) -> Iterator[None]:
        """Translate errors of Spark, or of the transform's function, about the plan into errors of the configuration."""
        with spark_errors(f"in planning {self._what}", lambda: jvm_answers(self.spark.sparkContext)):
            try:
                yield
            except (HeadraceError, Py4JNetworkError):
                raise
            except BaseException as error:  # whatever error a user function raises
                if is_interrupt(error):
                    raise
                raise self._unplanned(error) from error

    def _unplanned(self, error: BaseException) -> ConfigError:
        says = (
            in_short(text_of(error))
            if isinstance(error, Py4JError | PySparkException)
            else f"{type(error).__name__}: {error}"
        )
        return ConfigError(
            f"{self._what}: Spark cannot plan it: {says}. Nothing was taken in. It may read "
            f"{', '.join((self.node.name, *self._transform.tables))}; '{self.node.name}' has the columns "
            f"{', '.join(input_schema(self.node.stored).names)}."
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate Spark's errors while the transform runs into errors of Headrace."""
        where = f"in {self._what}"
        try:
            with doing(where), spark_errors(where, lambda: jvm_answers(self.spark.sparkContext)):
                yield
        except PySparkException as error:
            raise SourceError(
                f"{self._what}: it fails on a row: {in_short(text_of(error))}. Nothing was taken in. Let it give null for such values "
                "(try_cast, try_divide, try_element_at): rows that do not fit the record go to quarantine then."
            ) from error


def _arrow_schema(result: DataFrame) -> pa.Schema:
    """Return the schema to land a result with: times in UTC, and nullable columns for rows that were refused before the transform."""
    columns = to_arrow_schema(result.schema, **_IN_UTC)
    return pa.schema([pa.field(column.name, column.type) for column in columns])
