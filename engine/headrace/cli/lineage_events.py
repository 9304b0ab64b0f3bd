"""OpenLineage's events of a run: START, then COMPLETE or FAIL, to the collector that the environment names.

A thread sends them, by the client of OpenLineage. A collector that is down, or hangs, costs the run a second at its end, and one
sentence on stderr. Without one of OpenLineage's variables its client is not imported.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headrace import clock, logs
from headrace.cli.lineage_facets import PRODUCER, Json, datasets, facet
from headrace.errors import HeadraceError, SparkNeededError
from headrace.report import Time

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.plan.column_lineage import JobColumnLineage
    from headrace.run.options import RunOptions, RunReport

PARENT: Final = "OPENLINEAGE_PARENT_ID"
"""Variable with the run that a run belongs to: NAMESPACE/JOB/RUN."""

_PATIENCE: Final = 1.0
"""Seconds that the end of a run waits for its events."""
_OPENING: Final = 5.0
"""Seconds that it waits before, if the client is still being imported, or looks for what it needs."""

_log = logging.getLogger(__name__)


def with_events(
    config: JobConfig, options: RunOptions, run_job: Callable[[], RunReport], *, is_reported: bool = False
) -> RunReport:
    """Run a job, and send the events of the run, if the environment names a collector.

    Where a scheduler reports the run itself (`is_reported`), only a run with a parent sends its own, as the parent's child.
    """
    from headrace.config import sends_lineage

    if not sends_lineage(os.environ) or (is_reported and not os.environ.get(PARENT)):
        return run_job()
    events = LineageEvents(config, options)
    events.send("START")
    try:
        report = run_job()
    except SparkNeededError:  # a scheduler has asked whether Spark must start: the run itself follows, with the same id
        events.close()
        raise
    except BaseException as error:
        events.send("ABORT" if isinstance(error, KeyboardInterrupt) else "FAIL", _failure(error))
        events.close()
        raise
    events.send("COMPLETE", rows={name: sink.rows for name, sink in report.sinks.items()})
    events.close()
    return report


def known_columns(config: JobConfig) -> JobColumnLineage | None:
    """Return the columns of a job and their lineage; None where its pipeline cannot be loaded, which the run itself tells."""
    from headrace.plan.column_lineage import job_lineage

    try:
        return job_lineage(config.code, config.appended)
    except Exception:  # noqa: BLE001 - what tells of a run must not fail it
        return None


def datasets_of_run(config: JobConfig) -> tuple[list[Json], list[Json]]:
    """Return what a job reads and what it writes, as datasets with their columns and lineage."""
    inputs, outputs = datasets(config, known_columns(config))
    return [*inputs.values()], [*outputs.values()]


class LineageEvents:
    """Sender of the events of one run, in their order."""

    def __init__(self, config: JobConfig, options: RunOptions, environment: Mapping[str, str] = os.environ) -> None:
        """Describe the run, and start the thread that sends. Its id follows from job and run id: a retry continues the same run."""
        namespace = environment.get("OPENLINEAGE_NAMESPACE") or "headrace"
        name = config.job if config.branch is None else f"{config.job}@{config.branch}"
        self._job = {"namespace": namespace, "name": name, "facets": {}}
        self._run_id = clock.named_uuid(f"{namespace}/{name}/{options.run_id}")
        self._facets = _run_facets(options, environment.get(PARENT, ""))
        self._inputs, self._outputs = datasets(config, known_columns(config))
        self._queue: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._is_ready = threading.Event()
        """The client is imported, or cannot be."""
        self._left = 0
        self._has_told = False
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="headrace-openlineage")
        self._thread.start()

    def send(self, state: str, facets: Mapping[str, Json] = {}, rows: Mapping[str, int] = {}) -> None:
        """Send an event soon. `rows` are the numbers of rows that sinks got."""
        self._left += 1
        self._queue.put(
            {
                "eventType": state,
                "eventTime": str(Time(clock.now())),
                "run": {"runId": self._run_id, "facets": {**self._facets, **facets}},
                "job": self._job,
                "inputs": [*self._inputs.values()],
                "outputs": [_with_rows(output, rows.get(name)) for name, output in self._outputs.items()],
            }
        )

    def close(self) -> None:
        """Wait for the client, and then for the collector, for a second at most. Events that are left then are lost."""
        self._queue.put(None)
        self._is_ready.wait(_OPENING)
        self._thread.join(_PATIENCE)
        if self._left and self._thread.is_alive():
            self._tell(f"the collector has not taken them within {_PATIENCE:.0f} s")

    def _send_all(self) -> None:
        try:
            emit = _client()
        except Exception as error:  # noqa: BLE001 - of the client's configuration
            self._tell(_reason(error))
            return
        finally:
            self._is_ready.set()
        while (event := self._queue.get()) is not None:
            try:
                emit(event)
            except Exception as error:  # noqa: BLE001 - of a transport, which may be anybody's
                self._tell(_reason(error))
            self._left -= 1

    def _tell(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            message = f"events of this run were not delivered, and the run goes on: {why}"
            logs.write(_log, message, level=logging.WARNING, kind="OpenLineage")


def _client() -> Callable[[Json], None]:
    """Return the function that sends an event by OpenLineage's client, which reads the environment."""
    for name in ("openlineage", "urllib3"):  # their warnings would be sentences of their own on stderr
        logging.getLogger(name).addHandler(logging.NullHandler())
    client = import_module("openlineage.client").OpenLineageClient()
    v2: Any = import_module("openlineage.client.event_v2")
    kinds = {"inputs": v2.InputDataset, "outputs": v2.OutputDataset}

    def emit(event: Json) -> None:
        described = {key: [kind(**dataset) for dataset in event[key]] for key, kind in kinds.items()}
        client.emit(
            v2.RunEvent(
                eventType=v2.RunState(event["eventType"]),
                eventTime=event["eventTime"],
                run=v2.Run(**event["run"]),
                job=v2.Job(**event["job"]),
                producer=PRODUCER,
                **described,
            )
        )

    return emit


def _reason(error: Exception) -> str:
    """Return why events are not delivered, without the words of the error, which may hold a secret."""
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("openlineage"):
        return "its client is not installed: pip install 'headrace[openlineage]', or unset OpenLineage's variables"
    return type(error).__name__


def _with_rows(output: Json, rows: int | None) -> Json:
    if rows is None:
        return output
    return {
        **output,
        "outputFacets": {"outputStatistics": facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=rows)},
    }


def _run_facets(options: RunOptions, parent: str) -> dict[str, Json]:
    facets = {}
    if options.interval_start is not None and options.interval_end is not None:
        start, end = str(Time(options.interval_start)), str(Time(options.interval_end))
        facets["nominalTime"] = facet("1-0-1/NominalTimeRunFacet", nominalStartTime=start, nominalEndTime=end)
    if parent.count("/") >= _SLASHES:
        namespace, job, run_id = parent.rsplit("/", _SLASHES)
        facets["parent"] = facet(
            "1-1-0/ParentRunFacet", run={"runId": run_id}, job={"namespace": namespace, "name": job}
        )
    return facets


_SLASHES: Final = 2
"""Slashes in NAMESPACE/JOB/RUN. A namespace that is a URI has more."""


def _failure(error: BaseException) -> dict[str, Json]:
    """Return the facet of an error: of a foreign one its class alone, as its text may hold a secret."""
    name = type(error).__name__
    message = f"{name}: {error}" if isinstance(error, HeadraceError) else name
    return {"errorMessage": facet("1-0-1/ErrorMessageRunFacet", message=message, programmingLanguage="Python")}
