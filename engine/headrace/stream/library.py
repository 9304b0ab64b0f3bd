"""Access to the functions of `headrace.operators`, which methods of streams put into a pipeline.

Those functions import this package, so this package imports them only when a pipeline needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from headrace.api.functions import KeyedCoProcessFunction, KeyedProcessFunction
from headrace.api.options import GroupOptions, JoinType, Ranks
from headrace.api.ttl import StateTtl


class OperatorLibrary(Protocol):
    """Factory of the functions. Arguments are those of the stream's methods; errors name the wrong argument."""

    def top_n(
        self, takes: type, ranks: Ranks, *, retracting: bool, ttl: StateTtl | None
    ) -> KeyedProcessFunction[Any, Any]:
        """Return the function of `Stream.top`."""
        ...

    def group_aggregation(self, takes: type, gives: type, options: GroupOptions) -> KeyedProcessFunction[Any, Any]:
        """Return the function of `Stream.aggregate`."""
        ...

    def first_by_time(self, takes: type, *, ttl: StateTtl | None, at_watermark: bool) -> KeyedProcessFunction[Any, Any]:
        """Return the function of `Stream.first_by_time`."""
        ...

    def last_by_time(self, takes: type, *, ttl: StateTtl | None) -> KeyedProcessFunction[Any, Any]:
        """Return the function of `Stream.last_by_time`."""
        ...

    def normalize(self, takes: type, *, ttl: StateTtl | None) -> KeyedProcessFunction[Any, Any]:
        """Return the function of `Stream.normalize`."""
        ...

    def as_of_join(
        self,
        sides: tuple[type, type],
        gives: type,
        /,
        *,
        emit: Callable[..., Any],
        how: JoinType,
        retracting: bool,
        ttl: StateTtl | None,
    ) -> KeyedCoProcessFunction[Any, Any, Any]:
        """Return the function of `Stream.join_as_of`."""
        ...

    def regular_join(
        self,
        sides: tuple[type, type],
        gives: type,
        /,
        *,
        emit: Callable[..., Any],
        how: JoinType,
        lives: tuple[StateTtl | None, StateTtl | None],
        retracting: bool,
    ) -> KeyedCoProcessFunction[Any, Any, Any]:
        """Return the function of `Stream.join` without `within`."""
        ...

    def interval_join(
        self,
        sides: tuple[type, type],
        gives: type,
        /,
        *,
        emit: Callable[..., Any],
        how: JoinType,
        bounds: tuple[int, int],
    ) -> KeyedCoProcessFunction[Any, Any, Any]:
        """Return the function of `Stream.join` with `within`."""
        ...


def operator_library() -> OperatorLibrary:
    """Return the functions of `headrace.operators`; import them at the first call."""
    return cast("OperatorLibrary", import_module("headrace.operators._library"))
