"""Headrace: stateful operators for pipelines on Airflow, Spark and Delta Lake.

This is the door for user code. The other doors are `headrace.operators`, `headrace.testing`, `headrace.airflow` and
`headrace.errors`; every other module is internal and may change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.api import (
        AggregatedStream,
        AggregateFunction,
        AggregatingState,
        AsyncFunction,
        AsyncRetryStrategy,
        AsyncWait,
        Batching,
        BlockingFunction,
        BroadcastContext,
        BroadcastState,
        ChangelogMode,
        CircuitBreaker,
        Cleanup,
        ConnectedStreams,
        Context,
        Emit,
        ExpiryClock,
        ExponentialBackoff,
        FixedDelay,
        FlooredTimestamp,
        JoinType,
        Keep,
        KeyedBroadcastFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        Lag,
        Lifetime,
        ListState,
        LookupCache,
        LookupFunction,
        MapState,
        Migration,
        NoRetry,
        OnConflict,
        OnFailure,
        OnGap,
        OperatorStream,
        OutputMode,
        Pipeline,
        Process,
        ProcessedStream,
        RecoveryOption,
        ReducingState,
        RowKind,
        SideOutput,
        SinkNode,
        SourceNode,
        State,
        StateFuture,
        StateIterator,
        StateTtl,
        Strategy,
        Stream,
        Struct,
        TimeDomain,
        Timers,
        Timestamp,
        TtlTime,
        UpdateType,
        UpsertMaterialize,
        ValueState,
        Visibility,
        WindowedStream,
        WindowFunction,
        Windows,
        declare,
    )

__version__ = "0.2.0"

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


def __getattr__(name: str) -> object:
    """Import a name at its first use (PEP 562): `import headrace` alone costs nothing.

    Raises `AttributeError` for a name that is not in `__all__`.
    """
    if name not in __all__:
        msg = f"module 'headrace' has no attribute '{name}'"
        raise AttributeError(msg)
    from headrace import api

    value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that `from headrace import ...` accepts."""
    return sorted([*__all__, "__version__"])
