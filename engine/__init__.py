"""Headrace: stateful operators for pipelines on Airflow, Spark and Delta Lake."""

__version__ = "0.1.0"
