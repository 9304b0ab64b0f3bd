"""Keyed streams whose records are grouped by windows of event time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from headrace.api.stream_types import check_record
from headrace.api.windows import Windows, may_retract

if TYPE_CHECKING:
    from headrace.api.stream import AggregatedStream, Stream

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)


class WindowedStream(Generic[R]):
    """A keyed stream and its windows: `aggregate` must follow."""

    def __init__(self, stream: Stream[R], windows: Windows) -> None:
        """Hold the two; `Stream.window` makes it."""
        self._stream = stream
        self._windows = windows

    def aggregate(
        self, name: str, result: type[S], /, *, allowed_lateness: timedelta = timedelta(0)
    ) -> AggregatedStream[S]:
        """Emit one `result` for each key and window that has records, when the watermark reaches the window's end.

        `result` is a record type. Its annotations say how each field is made:

            class Revenue(Struct, frozen=True):
                customer: str                          # a field of key_by
                window_start: Timestamp                # the first moment of the window
                window_end: Timestamp                  # the first moment after it
                orders: Annotated[int, Count()]        # an aggregate of headrace.operators, or an AggregateFunction
                cents: Annotated[int, Sum("cents")]

        Each of them may be left out. Behind a `key_by` with a function, the field `key` takes the key. Results have the event time
        `window_end - 1 ms`, and the first one of a window is an insert (`+I`).

        A record that comes after its window has fired, but before the watermark passes the window's end by `allowed_lateness`,
        corrects the result: `-U` with the old one, `+U` with the new one. A record that comes later than that is dropped, or
        goes to the side output `late` of the result, if you declare it: `.side("late", Order)` or
        `.side_output("late", Order, sink=...)`. State is freed at the same moment.

        Raises `TypeError` for a field that says nothing of how it is made, or has another type than its aggregate gives;
        `ValueError` for a negative lateness, a field that the record lacks, and a stream that takes records back where an
        aggregate cannot.
        """
        stream = self._stream
        key = stream._key
        assert key is not None  # noqa: S101 - Stream.window has looked
        check_record(f"aggregate '{name}'", result)
        try:
            function = self._windows.aggregation(
                stream.record_type(),
                result,
                key=key,
                allowed_lateness=allowed_lateness,
                retracting=may_retract(stream._use()),
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"aggregate '{name}': {error}") from None
        return stream._aggregated(name, function, result)
