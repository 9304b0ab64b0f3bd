"""What user code imports. Nothing here knows Spark, Airflow or Delta."""

from headrace.api._async_io import Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from headrace.api._blocking import BlockingFunction
from headrace.api._blocks import declare
from headrace.api._functions import (
    AsyncFunction,
    BroadcastContext,
    Context,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    TimeDomain,
    Timers,
)
from headrace.api._future import StateFuture
from headrace.api._graph import AsyncWait, OutputMode, Process, SideOutput, SinkNode, SourceNode
from headrace.api._lookup import LookupFunction
from headrace.api._materialize import Emit, Keep, Lag, OnConflict, Strategy, UpsertMaterialize
from headrace.api._migration import Migration
from headrace.api._pipeline import Pipeline
from headrace.api._records import RowKind, Struct, Timestamp
from headrace.api._retry import AsyncRetryStrategy, ExponentialBackoff, FixedDelay, NoRetry
from headrace.api._state import (
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
from headrace.api._stream import ConnectedStreams, ProcessedStream, Stream
from headrace.api._ttl import Cleanup, ExpiryClock, OnGap, StateTtl, TtlTime, UpdateType, Visibility

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "AsyncWait",
    "Batching",
    "BlockingFunction",
    "BroadcastContext",
    "BroadcastState",
    "CircuitBreaker",
    "Cleanup",
    "ConnectedStreams",
    "Context",
    "Emit",
    "ExpiryClock",
    "ExponentialBackoff",
    "FixedDelay",
    "Keep",
    "KeyedBroadcastFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "Lag",
    "ListState",
    "LookupCache",
    "LookupFunction",
    "MapState",
    "Migration",
    "NoRetry",
    "OnConflict",
    "OnFailure",
    "OnGap",
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
    "declare",
]
