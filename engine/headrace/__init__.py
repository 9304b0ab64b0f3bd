"""Headrace: stateful operators for pipelines on Airflow, Spark and Delta Lake.

This is the door for user code. The other doors are `headrace.operators`, `headrace.testing`, `headrace.airflow` and
`headrace.errors`; every other module is internal and may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.api.changelog import COMPACTED, DEBEZIUM, MAXWELL, ChangelogMode
    from headrace.api.functions import (
        AsyncFunction,
        BroadcastContext,
        Context,
        KeyedBroadcastFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        TimeDomain,
        Timers,
        declare,
    )
    from headrace.api.future import StateFuture
    from headrace.api.graph import (
        AsyncWait,
        Emit,
        Keep,
        LagNode,
        OnConflict,
        OutputMode,
        Process,
        SideOutput,
        SinkNode,
        SourceNode,
        UpsertMaterialize,
    )
    from headrace.api.options import History, JoinType, Late, NullKeys, Trigger, WindowFunction, Windows
    from headrace.api.records import (
        Digits,
        Float32,
        FlooredTimestamp,
        Int8,
        Int16,
        Int32,
        Int64,
        Json,
        NaiveDatetime,
        RowKind,
        Struct,
        Timestamp,
        TimestampMicros,
        field,
    )
    from headrace.api.services import (
        AsyncRetryStrategy,
        Batching,
        BlockingFunction,
        CircuitBreaker,
        ExponentialBackoff,
        FixedDelay,
        LookupCache,
        LookupFunction,
        NoRetry,
        OnFailure,
        RecoveryOption,
    )
    from headrace.api.small_functions import keyed_function
    from headrace.api.states import (
        AggregateFunction,
        AggregatingState,
        BroadcastState,
        ListState,
        MapState,
        Migration,
        ReducingState,
        State,
        StateIterator,
        ValueState,
    )
    from headrace.api.ttl import Cleanup, ExpiryClock, Lifetime, OnGap, StateTtl, TtlTime, UpdateType, Visibility
    from headrace.options import Strategy
    from headrace.stream.stream import (
        AggregatedStream,
        ConnectedStreams,
        OperatorStream,
        Pipeline,
        ProcessedStream,
        Stream,
        WindowedStream,
    )

__version__ = "0.2.0"

__all__ = [
    "COMPACTED",
    "DEBEZIUM",
    "MAXWELL",
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
    "Digits",
    "Emit",
    "ExpiryClock",
    "ExponentialBackoff",
    "FixedDelay",
    "Float32",
    "FlooredTimestamp",
    "History",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "JoinType",
    "Json",
    "Keep",
    "KeyedBroadcastFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "LagNode",
    "Late",
    "Lifetime",
    "ListState",
    "LookupCache",
    "LookupFunction",
    "MapState",
    "Migration",
    "NaiveDatetime",
    "NoRetry",
    "NullKeys",
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
    "TimestampMicros",
    "Trigger",
    "TtlTime",
    "UpdateType",
    "UpsertMaterialize",
    "ValueState",
    "Visibility",
    "WindowFunction",
    "WindowedStream",
    "Windows",
    "declare",
    "field",
    "keyed_function",
]


_MODULES = {
    "api.changelog": ("COMPACTED", "DEBEZIUM", "MAXWELL", "ChangelogMode"),
    "api.functions": (
        "AsyncFunction",
        "BroadcastContext",
        "Context",
        "KeyedBroadcastFunction",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "TimeDomain",
        "Timers",
        "declare",
    ),
    "api.future": ("StateFuture",),
    "api.graph": (
        "AsyncWait",
        "Emit",
        "Keep",
        "LagNode",
        "OnConflict",
        "OutputMode",
        "Process",
        "SideOutput",
        "SinkNode",
        "SourceNode",
        "UpsertMaterialize",
    ),
    "api.options": ("History", "JoinType", "Late", "NullKeys", "Trigger", "WindowFunction", "Windows"),
    "api.records": (
        *("Digits", "Float32", "FlooredTimestamp", "Int8", "Int16", "Int32", "Int64", "Json", "NaiveDatetime"),
        *("RowKind", "Struct", "Timestamp", "TimestampMicros", "field"),
    ),
    "api.services": (
        "AsyncRetryStrategy",
        "Batching",
        "BlockingFunction",
        "CircuitBreaker",
        "ExponentialBackoff",
        "FixedDelay",
        "LookupCache",
        "LookupFunction",
        "NoRetry",
        "OnFailure",
        "RecoveryOption",
    ),
    "api.small_functions": ("keyed_function",),
    "api.states": (
        "AggregateFunction",
        "AggregatingState",
        "BroadcastState",
        "ListState",
        "MapState",
        "Migration",
        "ReducingState",
        "State",
        "StateIterator",
        "ValueState",
    ),
    "api.ttl": ("Cleanup", "ExpiryClock", "Lifetime", "OnGap", "StateTtl", "TtlTime", "UpdateType", "Visibility"),
    "options": ("Strategy",),
    "stream.stream": (
        "AggregatedStream",
        "ConnectedStreams",
        "OperatorStream",
        "Pipeline",
        "ProcessedStream",
        "Stream",
        "WindowedStream",
    ),
}
"""Modules with the names that they define."""


def __getattr__(name: str) -> object:
    """Import a name at its first use (PEP 562): `import headrace` alone costs nothing.

    Raises `AttributeError` for a name that is not in `__all__`.
    """
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        msg = f"module 'headrace' has no attribute '{name}'"
        raise AttributeError(msg)
    value = getattr(import_module(f"headrace.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that `from headrace import ...` accepts."""
    return sorted([*__all__, "__version__"])
