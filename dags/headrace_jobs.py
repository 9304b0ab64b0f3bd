"""Airflow's DAGs: one for each job file, and two for housekeeping."""

from headrace.airflow import headrace_dags

globals().update(headrace_dags("conf/jobs"))
