"""Job and cluster configuration: one schema for the command, the engine and the DAG files.

This package imports quickly, and imports neither Spark nor Delta nor Airflow.
"""

from headrace.config._airflow import AirflowConfig
from headrace.config._checks import job_problems
from headrace.config._cluster import ClusterConfig, ClusterFile
from headrace.config._document import raise_problems
from headrace.config._durations import PATTERN as DURATION_PATTERN
from headrace.config._durations import format_duration, parse_duration
from headrace.config._environment import expand_settings
from headrace.config._execution import AsyncStateConfig, ExecutionConfig, OperatorConfig
from headrace.config._files import CsvOptions, FileOptions
from headrace.config._interval_pattern import IntervalPattern
from headrace.config._job import (
    FOLDER_TABLE,
    LINES,
    AsyncIoConfig,
    CompactionConfig,
    JobConfig,
    JobFile,
    PublishConfig,
    ReplayConfig,
    RetentionConfig,
    RunConfig,
    ScheduleConfig,
    ServiceConfig,
    SinkConfig,
    SourceConfig,
    StateConfig,
    WatermarkConfig,
)
from headrace.config._load import (
    checked_name,
    home_folder,
    known_jobs,
    list_clusters,
    list_jobs,
    load_cluster,
    load_job,
    with_settings,
)
from headrace.config._moments import parse_moment
from headrace.config._pipeline import (
    binding_problems,
    check_bindings,
    import_pipeline,
    kindless_sinks,
    load_pipeline,
)
from headrace.config._schema import cluster_schema, job_schema
from headrace.config._schemes import allow_memory_places
from headrace.config._table_versions import Start, StartKind
from headrace.config._types import Promote
from headrace.config._urls import shown_url

__all__ = [
    "DURATION_PATTERN",
    "FOLDER_TABLE",
    "LINES",
    "AirflowConfig",
    "AsyncIoConfig",
    "AsyncStateConfig",
    "ClusterConfig",
    "ClusterFile",
    "CompactionConfig",
    "CsvOptions",
    "ExecutionConfig",
    "FileOptions",
    "IntervalPattern",
    "JobConfig",
    "JobFile",
    "OperatorConfig",
    "Promote",
    "PublishConfig",
    "ReplayConfig",
    "RetentionConfig",
    "RunConfig",
    "ScheduleConfig",
    "ServiceConfig",
    "SinkConfig",
    "SourceConfig",
    "Start",
    "StartKind",
    "StateConfig",
    "WatermarkConfig",
    "allow_memory_places",
    "binding_problems",
    "check_bindings",
    "checked_name",
    "cluster_schema",
    "expand_settings",
    "format_duration",
    "home_folder",
    "import_pipeline",
    "job_problems",
    "job_schema",
    "kindless_sinks",
    "known_jobs",
    "list_clusters",
    "list_jobs",
    "load_cluster",
    "load_job",
    "load_pipeline",
    "parse_duration",
    "parse_moment",
    "raise_problems",
    "shown_url",
    "with_settings",
]
