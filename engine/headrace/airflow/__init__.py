"""Airflow DAGs of Headrace jobs: the door for DAG files.

A DAG file is two lines; Airflow looks only at files that hold the words "airflow" and "dag".

    from headrace.airflow import headrace_dags
    globals().update(headrace_dags("conf/jobs"))

Airflow marks every DAG of a file stale when that file has an import error, so a second file shows the errors:

    from headrace.airflow import check_job_files
    check_job_files("conf/jobs")
"""

from headrace.airflow._dags import check_job_files, headrace_dags

__all__ = ["check_job_files", "headrace_dags"]
