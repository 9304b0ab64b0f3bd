"""Write docs/metrics.md: traces and metrics for OpenTelemetry, with the instruments of the register of metrics."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

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

Without an endpoint nothing of OpenTelemetry is imported. Jobs' files and pipelines need no change. [Alerts](alerts.md) need no collector.

| variable | what Headrace does |
|---|---|
| `OTEL_EXPORTER_OTLP_ENDPOINT`, or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` | exports to this address; an address of one signal alone exports that signal alone |
| `OTEL_EXPORTER_OTLP_PROTOCOL`, or that of a signal | `http/protobuf`, the default, or `grpc`, which needs `opentelemetry-exporter-otlp-proto-grpc` |
| `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER` | `none` switches a signal off, `otlp` is the default; `otlp_proto_http` and `otlp_proto_grpc` are `otlp` with that protocol |
| `OTEL_SDK_DISABLED` | `true` switches all off |
| `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | name and attributes of the resource; the name is `headrace` by default |
| `TRACEPARENT`, `TRACESTATE` | the span that is the parent of the run ([W3C](https://www.w3.org/TR/trace-context/)); a parent that is not sampled has no spans below it |
| all others, such as `OTEL_EXPORTER_OTLP_HEADERS`, `_CERTIFICATE`, `_COMPRESSION`, `OTEL_TRACES_SAMPLER` and `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` | as OpenTelemetry for Python takes them |

## With Airflow

Where Airflow's settings have `[traces] otel_on` or `[metrics] otel_on`, the operators give the driver the endpoint and the protocol by which Airflow
itself exports, unless the environment says them already. The span of the run is a child of Airflow's span of the task. That goes for the local runner and
for Spark in client mode. A driver in cluster mode runs on another machine: it gets the parent alone, and its endpoint from the settings of the
profile (`spark.yarn.appMasterEnv.OTEL_EXPORTER_OTLP_ENDPOINT`). Airflow's traces go over gRPC unless `OTEL_TRACES_EXPORTER` says otherwise, and so do
the driver's then: install `opentelemetry-exporter-otlp-proto-grpc` in its environment.

## What is in a trace

```text
run             job, run_id, branch, mode, interval, exit, checkpoint, rows, stopped_because
└─ micro-batch  checkpoint, rows, watermark
   └─ stage     stage (sources, calls, the name of an operator, commit), rows
      └─ task   operator (or source), task, rows, calls_left_out
         └─ call  operator, service, attempt, elements, outcome, seconds
```

The names of attributes begin with `headrace.`. Times of a watermark are milliseconds since 1970, as everywhere. Workers and executors export nothing: a task
tells the driver its begin, its end and some of its calls, and the driver makes spans of them. If the clock of a worker's machine is wrong, its spans are
moved into the span of their stage.

- A call is one that left the process: not one that a cache answered. Of each task, the {MOST_CALLS} slowest calls and the first {MOST_CALLS} without an
  answer are in the trace; `calls_left_out` is the number of the others. `outcome` is `answered`, `failed` (it raised) or `cancelled` (its time was over, or the run
  stopped). A call of `invoke_many` has several `elements`, and no `attempt`.
- A run that fails marks its spans, up to the stage, as errors, with the class and the message of the exception; tasks of that stage are not in the trace. Credentials and queries in URLs are left out, and so
  is the message of an exception that is not Headrace's.
- `exit` is the [exit code](errors.md). A run that is killed leaves no span of itself, but those of its micro-batches.

## What it costs

A thread of the driver does all of it, from the import of OpenTelemetry to the requests, after each commit. The run does not wait for it, except at its end: for
{PATIENCE:g} s at most, once OpenTelemetry is imported. So a collector that is down, hangs or answers errors costs no more than that, and never fails a run: one line on stderr, `telemetry: not all was
exported: ...`, says what went wrong. While a collector is slow, the spans of 64 micro-batches wait; those of others are left out. Metrics are not.
The imports cost the driver 0.3 s of a processor, beside what the run does. Tasks read two clocks more, and two for each call, which takes 0.6 microseconds longer.

## Metrics

After each commit, with the attributes `job` and, on a branch, `branch`. Counters add up what this run has committed; gauges have the last value. Those of a job as a whole are
there after each commit (`lag`, `waiting`) or at the end of a run that succeeded; the growth of the state is that of a week. A checkpoint has [the same numbers](state-tables.md#metrics).

Each run is a process, so its counters begin at 0, as OpenTelemetry allows. If your backend adds up numbers of short processes badly, choose
`OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta`.

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


def main() -> int:
    """Write the page, or compare it with the code; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
