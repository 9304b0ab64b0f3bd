"""What the stream's method `window` takes: how records are grouped by time, and the keyed function that does it."""

from __future__ import annotations

import abc
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import msgspec

from headrace.api.functions import KeyedProcessFunction
from headrace.api.graph import Input, KeyBy, Process, SourceNode
from headrace.api.joins import JoinFunction

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class WindowFunction(KeyedProcessFunction[In, Out]):
    """A keyed function that emits a result for each window of a key.

    `retracts` says that it may take a result back: it then emits `-U` and `+U`, or `-D`. `emits_late` says that records which
    come too late go to the side output `late`; else they are dropped.
    """

    LATE: ClassVar[str] = "late"
    retracts: bool
    emits_late: bool = False

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return what `headrace explain` shows of it: texts, lists of them, and durations."""


class Windows(abc.ABC):
    """Groups the records of a key by event time: base class of `Tumbling`, `Hopping`, `Cumulative` and `Session`."""

    @abc.abstractmethod
    def aggregation(
        self, takes: type[In], gives: type[Out], /, *, key: KeyBy, allowed_lateness: timedelta, retracting: bool
    ) -> WindowFunction[In, Out]:
        """Return the function that makes a record `gives` of the records of each key and window.

        `retracting` says that the input may take records back. Raises `ValueError` or `TypeError`, with the reason, for what
        cannot be aggregated.
        """


def may_retract(one: Input) -> bool:
    """Return whether a stream may have `-U` and `-D`, as far as the graph says it.

    It does not say what a process function of yours emits: there the answer is no.
    """
    operator = one.node.operator
    if isinstance(operator, SourceNode):
        return operator.row_kind is not None
    if isinstance(operator, Process):
        function = operator.function
        return one.side is None and isinstance(function, WindowFunction | JoinFunction) and function.retracts
    return any(may_retract(before) for before in one.node.inputs)
