"""What the environment asks for, and that nothing is imported without it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.telemetry.settings import wanted
from tests.house import ROOT
from tests.unit.support.demo_job import headrace, home
from tests.unit.telemetry.collector import write_job

__all__ = ["headrace", "home"]
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
BOTH = {"traces": "http/protobuf", "metrics": "http/protobuf"}


@pytest.mark.parametrize(
    ("environment", "protocols"),
    [
        ({}, {}),
        ({"OTEL_SERVICE_NAME": "orders", "OTEL_TRACES_EXPORTER": "otlp"}, {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, {}),
        (ENDPOINT, BOTH),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "TRUE"}, {}),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "no"}, BOTH),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, {"metrics": "http/protobuf"}),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, {"traces": "http/protobuf"}),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "console, otlp"}, BOTH),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "otlp_proto_grpc"}, BOTH | {"traces": "grpc"}),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"traces": "grpc", "metrics": "grpc"}),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, BOTH | {"metrics": "grpc"}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector"}, {"traces": "http/protobuf"}),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector"}, {"metrics": "http/protobuf"}),
    ],
)
def test_environment_selects_signals_and_protocols(environment, protocols):
    assert wanted(environment).protocols == protocols
    assert wanted(environment).problems == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin', and Headrace exports by otlp alone"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            "the protocol 'http/json' is none of http/protobuf and grpc",
        ),
    ],
)
def test_unknown_settings_are_named_and_skipped(change, sentence):
    asked = wanted(ENDPOINT | change)
    assert asked.protocols == {"metrics": "http/protobuf"}
    assert asked.problems[0].startswith(sentence)


NAMES = st.sampled_from(
    [
        "OTEL_SDK_DISABLED",
        *(f"OTEL_{signal}_EXPORTER" for signal in ("TRACES", "METRICS")),
        *(
            f"OTEL_EXPORTER_OTLP_{signal}{part}"
            for signal in ("", "TRACES_", "METRICS_")
            for part in ("ENDPOINT", "PROTOCOL")
        ),
    ]
)


@given(st.dictionaries(NAMES, st.sampled_from(["", "none", "otlp", "grpc", "true", ",", "x"]) | st.text(max_size=5)))
def test_any_environment_is_understood(environment):
    asked = wanted(environment)
    assert set(asked.protocols.values()) <= {"http/protobuf", "grpc"}
    assert bool(asked) == bool(asked.protocols or asked.problems)
    if not any(name.endswith("ENDPOINT") and value.strip() for name, value in environment.items()):
        assert not asked


_PROGRAM = """
import sys
from headrace.cli import main
sys.argv = ["headrace", "run", "--runner", "local", "--json"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*(name for name in sys.modules if "telemetry" in name), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("disabled", [True, False])
def test_run_without_endpoint_imports_no_opentelemetry(home, disabled):
    write_job(home)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    asked = {**ENDPOINT, "OTEL_SDK_DISABLED": "true"} if disabled else {"OTEL_SERVICE_NAME": "orders"}
    paths = {"HEADRACE_HOME": str(home), "PYTHONPATH": f"{ROOT / 'engine'}:{home}"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**environment, **asked, **paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1].split() == ["headrace.telemetry", "headrace.telemetry.settings"]
