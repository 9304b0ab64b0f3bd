"""Write docs/metrics.md: traces and metrics for OpenTelemetry, with the instruments of the register of metrics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import generated_page  # type: ignore[import-not-found]  # a script's neighbour

from headrace.async_io.traced_calls import MOST_CALLS
from headrace.metrics import METRICS
from headrace.telemetry.exporter import PATIENCE
from headrace.telemetry.instruments import INSTRUMENTS, Instrument

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

HEAD: Final = f"""# Traces and metrics

Made from the register of metrics by `make reference`; do not edit.

`headrace run` and `headrace backfill` send traces and metrics to a collector of [OpenTelemetry](https://opentelemetry.io) (OTLP), if their environment
names one:

```sh
pip install 'headrace[otel]'
export OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318
```

[Alerts](alerts.md) need no collector. The variables of OpenTelemetry for Python hold, such as `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SDK_DISABLED` and
`TRACEPARENT` for the parent of the run's span; an endpoint of one signal (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) exports that signal alone.
`OTEL_EXPORTER_OTLP_PROTOCOL` is `http/protobuf`, the default, or `grpc`, which needs `opentelemetry-exporter-otlp-proto-grpc`.

## With Airflow

Where Airflow's settings have `[traces] otel_on` or `[metrics] otel_on`, the driver exports as Airflow does, unless the environment says otherwise, and
the span of the run is a child of Airflow's span of the task. Airflow's traces go over gRPC unless `OTEL_TRACES_EXPORTER` says otherwise: install
`opentelemetry-exporter-otlp-proto-grpc` in the driver's environment. A driver in cluster mode gets its endpoint from the settings of the profile
(`spark.yarn.appMasterEnv.OTEL_EXPORTER_OTLP_ENDPOINT`).

## What is in a trace

```text
run             job, run_id, branch, mode, interval, exit, checkpoint, rows, stopped_because
└─ micro-batch  checkpoint, rows, watermark
   └─ stage     stage (sources, calls, the name of an operator, commit), rows
      └─ task   operator (or source), task, rows, calls_left_out
         └─ call  operator, service, attempt, elements, outcome, seconds
```

The names of attributes begin with `headrace.`. Times of a watermark are milliseconds since 1970. The driver makes all spans. Of each task, the
{MOST_CALLS} slowest calls and the first {MOST_CALLS} without an answer are in the trace; `outcome` is `answered`, `failed` (it raised) or `cancelled` (its
time was over, or the run stopped). A run that fails marks its spans, up to the stage, as errors; credentials and queries in URLs are left out, and
so is the message of an exception that is not Headrace's. A run that is killed leaves no span of itself, but those of its micro-batches.

## What it costs

A collector that is down, hangs or answers errors never fails a run, and delays its end by {PATIENCE:g} s at most; importing OpenTelemetry takes 0.3 s of a
processor. One line on stderr, `telemetry: not all was exported: ...`, says what went wrong.

## Metrics

After each commit, with the attributes `job` and, on a branch, `branch`. Counters add up what this run has committed; gauges have the last value. A
checkpoint has [the same numbers](state-tables.md#metrics). Each run is a process, so its counters begin at 0. If your backend adds up numbers of short
processes badly, choose `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta`.

"""
HEADING: Final = "| metric | unit | kind | meaning |\n|---|---|---|---|\n"


def _table(instruments: list[Instrument]) -> str:
    rows = (f"| `{own.name}` | `{own.unit}` | {own.kind} | {own.metric.help} |\n" for own in instruments)
    return f"{HEADING}{''.join(rows)}"


def page() -> str:
    """Return the page."""
    whole = [own for own in INSTRUMENTS.values() if own.metric.name not in METRICS]
    counted = [own for own in INSTRUMENTS.values() if own.metric.name in METRICS]
    parts = {
        "### Of a job as a whole": whole,
        "### Of micro-batches": [own for own in counted if not own.is_of_operator],
        "### Of services": [own for own in counted if own.is_of_operator],
    }
    notes = {
        "### Of services": "Also with the attributes `operator` and `service` (empty, if the operator names none).\n\n"
    }
    sections = (f"{title}\n\n{notes.get(title, '')}{_table(rows)}" for title, rows in parts.items())
    return HEAD + "\n".join(sections)


if __name__ == "__main__":
    sys.exit(generated_page.run(PAGE, page, __doc__ or ""))
