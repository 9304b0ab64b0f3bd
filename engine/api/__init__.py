"""What user code imports. Nothing here knows Spark, Airflow or Delta."""

from engine.api._async_io import Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from engine.api._blocking import BlockingFunction
from engine.api._blocks import declare
from engine.api._functions import AsyncFunction, Context, KeyedProcessFunction, TimeDomain, Timers
from engine.api._future import StateFuture
from engine.api._lookup import LookupFunction
from engine.api._materialize import Emit, Keep, Lag, OnConflict, Strategy, UpsertMaterialize
from engine.api._migration import Migration
from engine.api._pipeline import (
    AsyncWait,
    OutputMode,
    Pipeline,
    Process,
    SideOutput,
    Sink,
    Source,
)
from engine.api._records import RowKind, Struct, Timestamp
from engine.api._retry import AsyncRetryStrategy, ExponentialBackoff, FixedDelay, NoRetry
from engine.api._state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    StateIterator,
    ValueState,
)
from engine.api._ttl import Cleanup, ExpiryClock, OnGap, StateTtl, TtlTime, UpdateType, Visibility

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "AsyncWait",
    "Batching",
    "BlockingFunction",
    "CircuitBreaker",
    "Cleanup",
    "Context",
    "Emit",
    "ExpiryClock",
    "ExponentialBackoff",
    "FixedDelay",
    "Keep",
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
    "RecoveryOption",
    "ReducingState",
    "RowKind",
    "SideOutput",
    "Sink",
    "Source",
    "State",
    "StateFuture",
    "StateIterator",
    "StateTtl",
    "Strategy",
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
