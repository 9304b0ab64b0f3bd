"""Results of windows: the interface that aggregates and rankings share."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.api import AggregateFunction, Context, RowKind, Struct
from headrace.api.bundles import BundleAggregate
from headrace.operators._accumulators import Change
from headrace.operators._bundled_changes import BundledChanges

WINDOW_START = "window_start"
WINDOW_END = "window_end"
BOUNDS = (WINDOW_START, WINDOW_END)
"""Fields of a result that hold the bounds of its window."""


class WindowResult(abc.ABC):
    """Computation of a window's result from its records. A *part* is the stored form of some of them, and may be changed in place."""

    takes: type[Struct]
    """Type of the records."""
    gives: type[Struct]
    """Type of the emitted results."""
    slice: Any
    """Type of a part."""

    @property
    def result_type(self) -> Any:
        """Return the type of a window's result, which `result` returns and `emit` takes."""
        return self.gives

    @abc.abstractmethod
    def key_of_results(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a result that tell it from others of its window, by the fields of the stream's key; none if nothing does."""

    @abc.abstractmethod
    def has_bound(self, name: str) -> bool:
        """Return whether a field of the result holds this bound of the window: `window_start` or `window_end`."""

    @abc.abstractmethod
    def create(self) -> Any:
        """Return an empty part."""

    @abc.abstractmethod
    def add(self, change: Change, part: Any) -> Any:
        """Return `part` with a change applied: a record added, or one removed that the part `may_hold`."""

    @abc.abstractmethod
    def may_hold(self, change: Change, part: Any) -> bool:
        """Return whether the part (None: there is none) may have the record of a retraction: false only where it surely has not."""

    def add_together(self, changes: BundledChanges, part: Any) -> Any:
        """Return `part` with all changes of a bundle applied: the same as one by one, which is how it is done by default.

        A retraction that matches nothing goes to the quarantine.
        """
        for change in changes:
            if change.sign < 0 and not self.may_hold(change, part):
                changes.set_aside()
            else:
                part = self.add(change, part)
        return part

    @abc.abstractmethod
    def merge(self, one: Any, other: Any) -> Any:
        """Return `one` with the records of `other` merged in. `other` does not change; the records of `one` are earlier."""

    @abc.abstractmethod
    def result(self, part: Any, key: Any, start: int, end: int) -> Any:
        """Return the result of a key's window (start and end in ms); None if it has no records."""

    @abc.abstractmethod
    def emit(self, ctx: Context, before: Any, after: Any, *, at: int) -> None:
        """Emit the change of a result from `before` to `after`; None means no result. `at` is the event time of both (ms)."""

    @abc.abstractmethod
    def retraction_refused_by(self) -> list[str]:
        """Return descriptions of the parts of the result that cannot remove a record again."""

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows."""


def unique_by_bounds(
    result: WindowResult, fields: tuple[str, ...], bounds: Sequence[str] = BOUNDS
) -> tuple[tuple[str, ...], ...]:
    """Return the unique keys of results: what tells those of a window apart, with each bound that tells windows apart."""
    key = result.key_of_results(fields)
    return tuple((*key, bound) for bound in bounds if key and result.has_bound(bound))


def check_can_retract(result: WindowResult) -> None:
    """Raise `ValueError` if some part of the result cannot remove a record again."""
    if refusing := result.retraction_refused_by():
        msg = (
            f"the stream may have -U and -D, and {', '.join(refusing)} cannot take a record back: use Count, CountDistinct, Sum "
            "and Avg, or a stream that takes nothing back"
        )
        raise ValueError(msg)


def check_kind(kind: RowKind, refusing: Sequence[str]) -> None:
    """Raise `ValueError` for a retraction where parts of the result, `refusing`, cannot remove a record."""
    if kind.is_retraction and refusing:
        msg = f"{', '.join(refusing)} cannot take a record back, and this one is {kind.symbol}"
        raise ValueError(msg)


def aggregate_function(window_result: WindowResult) -> AggregateFunction[Change, Any, Any]:
    """Return the aggregate function of a state that holds parts; its result is the part itself."""
    part_type = window_result.slice

    class Parts(AggregateFunction[Change, part_type, part_type], BundleAggregate):  # type: ignore[valid-type]  # known when it is called
        def create_accumulator(self) -> Any:
            return window_result.create()

        def add(self, value: Change, accumulator: Any, /) -> Any:
            return window_result.add(value, accumulator)

        def add_all(self, values: Iterable[Change], accumulator: Any, /) -> Any:
            if isinstance(values, BundledChanges):
                return window_result.add_together(values, accumulator)
            for value in values:
                accumulator = window_result.add(value, accumulator)
            return accumulator

        def get_result(self, accumulator: Any, /) -> Any:
            return accumulator

        def merge(self, one: Any, other: Any, /) -> Any:
            return window_result.merge(one, other)

    return Parts()
