"""Windows, the argument of the stream's method `window`: they group records by time, and make the keyed function for it."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import msgspec

from headrace.api.functions import KeyedCoProcessFunction, KeyedProcessFunction, function_types
from headrace.api.graph import KeyBy
from headrace.api.operator_function import OperatorFunction
from headrace.api.ranks import Ranks
from headrace.api.window_join import WindowJoin

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class WindowFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """A keyed function that emits results for each window of a key.

    Records that are too late go to the side output `late`, where the pipeline declares it; else they are dropped.
    """

    KIND = "windows"
    TAKER = "aggregate"
    LATE: ClassVar[str] = "late"

    @property
    def emits_late(self) -> bool:
        """Return whether records that are too late go to the side output `late`."""
        return self.LATE in self.declared

    def side_types(self) -> dict[str, type[msgspec.Struct]]:
        """Return the side output `late`."""
        return {self.LATE: function_types(self)[0][0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """When windows of a keyed stream fire, and which late records they take."""

    key: KeyBy
    """The key of the records."""
    retracting: bool
    """True: the input may retract records."""
    allowed_lateness: timedelta = timedelta(0)
    """How long after its end a window takes late records."""
    early: timedelta | None = None
    """Step of event time after which a window emits its result so far; None: only at its end."""


class Windows(abc.ABC):
    """Groups the records of a key by event time: base class of `Tumbling`, `Hopping`, `Cumulative` and `Session`."""

    @abc.abstractmethod
    def aggregation(self, takes: type[In], gives: type[Out], options: WindowOptions, /) -> WindowFunction[In, Out]:
        """Return the function that makes a record `gives` of the records of each key and window.

        Raises `ValueError` or `TypeError`, with the reason, for what cannot be aggregated.
        """

    @abc.abstractmethod
    def ranking(self, takes: type[In], ranks: Ranks, options: WindowOptions, /) -> WindowFunction[In, Any]:
        """Return the function that emits the first records of each key and window.

        Raises `ValueError` or `TypeError`, with the reason, for what cannot be ranked.
        """

    @abc.abstractmethod
    def joining(self, join: WindowJoin, /) -> KeyedCoProcessFunction[Any, Any, Any]:
        """Return the function that joins the records of two streams in each window.

        Raises `ValueError`, with the reason, for windows that cannot be joined.
        """
