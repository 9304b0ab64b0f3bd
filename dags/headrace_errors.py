"""Show the job files that make no DAG as an import error of this file; it holds no DAG that the error could stop."""

from headrace.airflow import check_job_files

check_job_files("conf/jobs")
