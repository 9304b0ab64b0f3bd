"""Job and cluster configuration: one schema for the command, the engine and the DAG files.

This package imports quickly, and imports neither Spark nor Delta nor Airflow.
"""

from headrace.config._alerts import Condition, parse_condition
from headrace.config._checks import Problem, job_problems
from headrace.config._cluster import ClusterConfig, ClusterFile
from headrace.config._datasets import Dataset, dataset_of, datasets_of, sends_lineage
from headrace.config._document import raise_problems
from headrace.config._interval_pattern import IntervalPattern
from headrace.config._job import (
    LINES,
    AirflowConfig,
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
    project_around,
    with_settings,
)
from headrace.config._scalars import allow_scheme, expand_settings
from headrace.config._schema import cluster_schema, job_schema
from headrace.config._sections import (
    AsyncStateConfig,
    CorrectedInput,
    CsvOptions,
    EventOptions,
    ExecutionConfig,
    FileOptions,
    IntervalOptions,
    JsonOptions,
    OperatorConfig,
    RegistryOptions,
    UpsertMaterializeConfig,
)
from headrace.config._sink import FOLDER_TABLE, SinkConfig
from headrace.config._source import SOURCE_FORMATS, SourceConfig
from headrace.config._time_pattern import TimePattern, time_pattern
from headrace.config._types import PipelineCode, Promote
from headrace.config._values import PATTERN as DURATION_PATTERN
from headrace.config._values import Start, StartKind, format_duration, parse_duration, parse_timestamp, shown_url

__all__ = [
    "DURATION_PATTERN",
    "FOLDER_TABLE",
    "LINES",
    "SOURCE_FORMATS",
    "AirflowConfig",
    "AsyncIoConfig",
    "AsyncStateConfig",
    "ClusterConfig",
    "ClusterFile",
    "CompactionConfig",
    "Condition",
    "CorrectedInput",
    "CsvOptions",
    "Dataset",
    "EventOptions",
    "ExecutionConfig",
    "FileOptions",
    "IntervalOptions",
    "IntervalPattern",
    "JobConfig",
    "JobFile",
    "JsonOptions",
    "OperatorConfig",
    "PipelineCode",
    "Problem",
    "Promote",
    "PublishConfig",
    "RegistryOptions",
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
    "TimePattern",
    "UpsertMaterializeConfig",
    "WatermarkConfig",
    "allow_scheme",
    "checked_name",
    "cluster_schema",
    "dataset_of",
    "datasets_of",
    "expand_settings",
    "format_duration",
    "home_folder",
    "job_problems",
    "job_schema",
    "known_jobs",
    "list_clusters",
    "list_jobs",
    "load_cluster",
    "load_job",
    "parse_condition",
    "parse_duration",
    "parse_timestamp",
    "project_around",
    "raise_problems",
    "sends_lineage",
    "shown_url",
    "time_pattern",
    "with_settings",
]
