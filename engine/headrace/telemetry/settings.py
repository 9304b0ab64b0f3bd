"""What the environment asks for, by the names of the OpenTelemetry specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_SIGNALS: Final = ("traces", "metrics")
_PROTOCOLS: Final = ("http/protobuf", "grpc")
_EXPORTERS: Final = {"otlp": None, "otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
"""Names of OTLP's exporters, and the protocol that each fixes. OpenTelemetry for Python, and so Airflow, knows the last two as well."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Signals that a process is to export."""

    protocols: Mapping[str, str]
    """Protocol by signal: `traces`, `metrics`."""
    problems: tuple[str, ...] = ()
    """Sentences on settings that Headrace does not follow."""

    def __bool__(self) -> bool:
        """Return whether there is something to do, or to say."""
        return bool(self.protocols or self.problems)


def wanted(environment: Mapping[str, str]) -> Wanted:
    """Return what an environment asks for. Nothing without an endpoint, and with OTEL_SDK_DISABLED=true."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Wanted({})
    protocols: dict[str, str] = {}
    problems: list[str] = []
    for signal in _SIGNALS:
        if not _of_signal(environment, signal, "ENDPOINT"):
            continue
        for protocol in _protocols(environment, signal, problems):
            protocols[signal] = protocol
    return Wanted(protocols, tuple(dict.fromkeys(problems)))


def _protocols(environment: Mapping[str, str], signal: str, problems: list[str]) -> Iterator[str]:
    """Yield the protocol of a signal, unless it is switched off or asks for something that Headrace does not have."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [name.strip() for name in environment.get(variable, "").split(",") if name.strip()] or ["otlp"]
    if names == ["none"]:
        return
    known = [name for name in names if name in _EXPORTERS]
    if not known:
        problems.append(f"{variable} is '{environment[variable]}', and Headrace exports by otlp alone")
        return
    protocol = _EXPORTERS[known[0]] or _of_signal(environment, signal, "PROTOCOL") or _PROTOCOLS[0]
    if protocol not in _PROTOCOLS:
        problems.append(
            f"the protocol '{protocol}' is none of {' and '.join(_PROTOCOLS)} (OTEL_EXPORTER_OTLP_PROTOCOL)"
        )
        return
    yield protocol


def _of_signal(environment: Mapping[str, str], signal: str, setting: str) -> str:
    """Return a setting of OTLP for a signal, else the one for all signals; empty without both."""
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{setting}", "").strip()
    return own or environment.get(f"OTEL_EXPORTER_OTLP_{setting}", "").strip()
