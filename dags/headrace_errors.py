"""Show the errors of invalid job files as an import error of this file, which has no DAG that the error could stop."""

from headrace.airflow import check_job_files

check_job_files("conf/jobs")
