"""Instruments of OpenTelemetry, made from the register of metrics, and the points that a checkpoint gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import fields

from headrace import clock
from headrace.async_io.metrics import ServiceMetrics
from headrace.log.checkpoint import Checkpoint
from headrace.metrics import ALERT_METRICS, METRICS, Metric, Total, Unit

Attributes = Mapping[str, str]
_UCUM: Final = {Unit.BYTES: "By", Unit.MILLISECONDS: "ms", Unit.TIMESTAMP: "ms", Unit.PERCENT: "%"} | {
    Unit.ENTRIES: "{entry}",
    Unit.BATCHES: "{batch}",
}
"""Units of the Unified Code for Units of Measure. A number of things is 1, with a word in braces: that of one thing."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """Instrument of a registered metric."""

    metric: Metric
    kind: Literal["counter", "gauge"]
    """A counter adds up what the run has committed; a gauge has the last value."""
    is_of_operator: bool
    """It has the attributes `operator` and `service`."""

    @property
    def name(self) -> str:
        """Return its name among those of other programs."""
        return f"headrace.{self.metric.name}"

    @property
    def unit(self) -> str:
        """Return its unit by UCUM."""
        unit = self.metric.unit
        return _UCUM.get(unit) or f"{{{unit.value.removesuffix('s')}}}"


@dataclass(frozen=True, slots=True)
class Point:
    """Value of an instrument. That of a counter is added to what it has."""

    instrument: Instrument
    value: float
    attributes: Attributes


_OF_JOB_TOO: Final = {"resumed", "quarantined"}
"""Metrics of services that other stages count as well: their totals are those of the job."""
_OF_OPERATORS: Final = {field.name for field in fields(ServiceMetrics)} - _OF_JOB_TOO


def _instrument(metric: Metric) -> Instrument:
    is_counter = metric.name in METRICS and metric.total is Total.SUM
    return Instrument(metric, "counter" if is_counter else "gauge", metric.name in _OF_OPERATORS)


INSTRUMENTS: Final[Mapping[str, Instrument]] = {
    name: _instrument(metric) for name, metric in ({**METRICS, **ALERT_METRICS}).items()
}
"""The instruments, by name of the metric: those of tasks, and those of a job as a whole."""


def points_of(checkpoint: Checkpoint, job: Attributes, services: Mapping[str, str]) -> Iterator[Point]:
    """Yield what a micro-batch has counted. `job` are the attributes of all points, `services` has the service of each async operator."""
    for name, instrument in INSTRUMENTS.items():
        if name not in METRICS or instrument.is_of_operator:
            continue
        if instrument.kind == "counter" or name in checkpoint.metrics:
            yield Point(instrument, checkpoint.metrics.get(name, 0), job)
    for operator, measured in checkpoint.services.items():
        attributes = {**job, "operator": operator, "service": services.get(operator, "")}
        for name in _OF_OPERATORS & METRICS.keys():
            if (value := getattr(measured, name)) is not None:
                yield Point(INSTRUMENTS[name], value, attributes)
    yield from job_points({"waiting": checkpoint.work.pending}, job)
    if checkpoint.watermark is not None:
        yield from job_points({"lag": max(0, clock.now() - checkpoint.watermark)}, job)


def job_points(values: Mapping[str, float], job: Attributes) -> Iterator[Point]:
    """Yield metrics of a job as a whole."""
    return (Point(INSTRUMENTS[name], value, job) for name, value in values.items())
