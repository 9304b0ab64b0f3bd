"""Results of windows: the interface that aggregates and rankings share."""

from __future__ import annotations

import abc
from typing import Any

from headrace.api import AggregateFunction, Context, Struct
from headrace.operators._accumulators import Change


class WindowResult(abc.ABC):
    """How the result of a window is made of its records. A *part* is what is stored of some of them, and may be changed in place."""

    takes: type[Struct]
    """The type of the records."""
    gives: type[Struct]
    """The type of what is emitted."""
    slice: Any
    """The type of a part."""

    @property
    def result_type(self) -> Any:
        """Return the type of a window's result: what `result` returns, and `emit` takes."""
        return self.gives

    @abc.abstractmethod
    def create(self) -> Any:
        """Return the part of no records."""

    @abc.abstractmethod
    def add(self, change: Change, part: Any) -> Any:
        """Return `part` with a change in it."""

    @abc.abstractmethod
    def merge(self, one: Any, other: Any) -> Any:
        """Return `one` with all that is in `other`, which stays as it is; the records of `one` are the earlier ones."""

    @abc.abstractmethod
    def result(self, part: Any, key: Any, start: int, end: int) -> Any:
        """Return the result of a key's window (start and end in ms); None where it has no records."""

    @abc.abstractmethod
    def emit(self, ctx: Context, before: Any, after: Any, *, at: int) -> None:
        """Emit what has become of a result; None is no result. `at` is the event time of both (ms)."""

    @abc.abstractmethod
    def retraction_refused_by(self) -> list[str]:
        """Return what cannot take a record out again."""

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return what `headrace explain` shows of it."""


def aggregate_function(made: WindowResult) -> AggregateFunction[Change, Any, Any]:
    """Return the function of a state that holds parts; its result is the part itself."""
    part_type = made.slice

    class Parts(AggregateFunction[Change, part_type, part_type]):  # type: ignore[valid-type]  # known when it is called
        def create_accumulator(self) -> Any:
            return made.create()

        def add(self, value: Change, accumulator: Any, /) -> Any:
            return made.add(value, accumulator)

        def get_result(self, accumulator: Any, /) -> Any:
            return accumulator

        def merge(self, one: Any, other: Any, /) -> Any:
            return made.merge(one, other)

    return Parts()
