"""Names that user code imports. This package imports neither Spark nor Airflow nor Delta."""

from headrace.api.async_io import Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from headrace.api.blocking_function import BlockingFunction
from headrace.api.blocks import declare
from headrace.api.changelog_mode import ChangelogMode
from headrace.api.functions import (
    AsyncFunction,
    BroadcastContext,
    Context,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    TimeDomain,
    Timers,
)
from headrace.api.future import StateFuture
from headrace.api.graph import AsyncWait, OutputMode, Process, SideOutput, SinkNode, SourceNode
from headrace.api.join_type import JoinType
from headrace.api.lifetime import Lifetime
from headrace.api.lookup_function import LookupFunction
from headrace.api.migration import Migration
from headrace.api.pipeline import Pipeline
from headrace.api.records import FlooredTimestamp, RowKind, Struct, Timestamp
from headrace.api.retry_strategies import AsyncRetryStrategy, ExponentialBackoff, FixedDelay, NoRetry
from headrace.api.state_ttl import Cleanup, ExpiryClock, OnGap, StateTtl, TtlTime, UpdateType, Visibility
from headrace.api.states import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    ReducingState,
    State,
    StateIterator,
    ValueState,
)
from headrace.api.stream import AggregatedStream, ConnectedStreams, OperatorStream, ProcessedStream, Stream
from headrace.api.upsert_materialize import Emit, Keep, Lag, OnConflict, UpsertMaterialize
from headrace.api.windowed_stream import WindowedStream
from headrace.api.windows import WindowFunction, Windows
from headrace.strategy import Strategy

__all__ = [
    "AggregateFunction",
    "AggregatedStream",
    "AggregatingState",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "AsyncWait",
    "Batching",
    "BlockingFunction",
    "BroadcastContext",
    "BroadcastState",
    "ChangelogMode",
    "CircuitBreaker",
    "Cleanup",
    "ConnectedStreams",
    "Context",
    "Emit",
    "ExpiryClock",
    "ExponentialBackoff",
    "FixedDelay",
    "FlooredTimestamp",
    "JoinType",
    "Keep",
    "KeyedBroadcastFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "Lag",
    "Lifetime",
    "ListState",
    "LookupCache",
    "LookupFunction",
    "MapState",
    "Migration",
    "NoRetry",
    "OnConflict",
    "OnFailure",
    "OnGap",
    "OperatorStream",
    "OutputMode",
    "Pipeline",
    "Process",
    "ProcessedStream",
    "RecoveryOption",
    "ReducingState",
    "RowKind",
    "SideOutput",
    "SinkNode",
    "SourceNode",
    "State",
    "StateFuture",
    "StateIterator",
    "StateTtl",
    "Strategy",
    "Stream",
    "Struct",
    "TimeDomain",
    "Timers",
    "Timestamp",
    "TtlTime",
    "UpdateType",
    "UpsertMaterialize",
    "ValueState",
    "Visibility",
    "WindowFunction",
    "WindowedStream",
    "Windows",
    "declare",
]
