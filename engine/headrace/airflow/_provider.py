"""Metadata of the Airflow provider: the entry point `apache_airflow_provider` names this module."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def provider_info() -> dict[str, Any]:
    """Return the provider's metadata. Imports neither Airflow nor an operator."""
    return {
        "package-name": "headrace",
        "name": "Headrace",
        "description": "Stateful operators for pipelines on Airflow, Spark and Delta Lake",
        "versions": [version("headrace")],
        "extra-links": ["headrace.airflow._results.CheckpointLink", "headrace.airflow._results.SparkUiLink"],
    }
