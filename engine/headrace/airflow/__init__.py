"""Airflow DAGs and operators of Headrace jobs: the door for DAG files.

A DAG file is two lines; Airflow looks only at files that hold the words "airflow" and "dag".

    from headrace.airflow import headrace_dags
    globals().update(headrace_dags("conf/jobs"))

Airflow marks every DAG of a file stale when that file has an import error, so a second file shows the errors:

    from headrace.airflow import check_job_files
    check_job_files("conf/jobs")

For a DAG of your own there are operators and a sensor:

    from headrace.airflow import HeadraceCheckpointSensor, HeadraceRunOperator
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.airflow._command import HeadraceCompactOperator, HeadraceRestoreOperator, HeadraceSavepointOperator
    from headrace.airflow._dags import check_job_files, headrace_dag, headrace_dags
    from headrace.airflow._results import sink_asset
    from headrace.airflow._run_operator import HeadraceRunOperator
    from headrace.airflow._sensor import HeadraceCheckpointSensor

__all__ = [
    "HeadraceCheckpointSensor",
    "HeadraceCompactOperator",
    "HeadraceRestoreOperator",
    "HeadraceRunOperator",
    "HeadraceSavepointOperator",
    "check_job_files",
    "headrace_dag",
    "headrace_dags",
    "sink_asset",
]

_MODULES = {
    "HeadraceCheckpointSensor": "_sensor",
    "HeadraceCompactOperator": "_command",
    "HeadraceRestoreOperator": "_command",
    "HeadraceRunOperator": "_run_operator",
    "HeadraceSavepointOperator": "_command",
    "check_job_files": "_dags",
    "headrace_dag": "_dags",
    "headrace_dags": "_dags",
    "sink_asset": "_results",
}


def __getattr__(name: str) -> object:
    """Import a name at its first use (PEP 562): Airflow imports this package for its metadata alone.

    Raises `AttributeError` for a name that is not in `__all__`.
    """
    if name not in _MODULES:
        msg = f"module 'headrace.airflow' has no attribute '{name}'"
        raise AttributeError(msg)
    value = getattr(import_module(f"headrace.airflow.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
