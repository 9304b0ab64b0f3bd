"""Base of streams: their origin, and the checks of the operators that may follow; `Stream` adds the operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace.api.changelog import StreamChanges
from headrace.api.changelog_inference import changes_of
from headrace.api.functions import TimeDomain
from headrace.api.graph import Input, KeyBy, Node, Operator, OutputMode, name_of
from headrace.api.records import digits_of
from headrace.api.ttl import AnyTtl, StateTtl, TtlTime
from headrace.api.types import hints_of, key_types, shown_types
from headrace.stream.pipeline import PipelineGraph

R = TypeVar("R", bound=msgspec.Struct)

Fields = str | tuple[str, ...]
"""A field, or several."""


def fields_of(given: Fields) -> tuple[str, ...]:
    """Return the fields as a tuple."""
    return (given,) if isinstance(given, str) else given


def fields_or_none(given: Fields | None) -> tuple[str, ...] | None:
    """Return the fields as a tuple; None where they are left out."""
    return None if given is None else fields_of(given)


class StreamBase(Generic[R]):
    """Output of one node of a pipeline's graph, whose records have one type."""

    def __init__(
        self,
        pipeline: PipelineGraph,
        node: Node,
        record: type[R],
        *,
        side: str | None = None,
        key: KeyBy | None = None,
        is_broadcast: bool = False,
    ) -> None:
        """Make a stream of the output of `node`; pipelines and streams call this."""
        self._pipeline = pipeline
        self._node = node
        self._record = record
        self._side = side
        self._key = key
        self._is_broadcast = is_broadcast

    def __repr__(self) -> str:
        """Name the stream's operator, and the type of its records."""
        return f"<Stream of {self._record.__name__} from '{self._origin}'>"

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators of the pipeline so far, in the order in which they were added."""
        return self._pipeline.operators

    def record_type(self) -> type[R]:
        """Return the type of the stream's records."""
        return self._record

    # ------------------------------------------------------------------------------------------------- origin

    @property
    def _origin(self) -> str:
        """Return the name of the operator that emits these records, for errors."""
        name = self._node.operator.name
        return name if self._side is None else f"{name}.{self._side}"

    @property
    def _changes(self) -> StreamChanges:
        return changes_of(self._use())

    def _use(self) -> Input:
        return Input(self._node, self._side, self._key, self._is_broadcast)

    # ------------------------------------------------------------------------------------------------- checks

    def _check_free(self, follower: str) -> None:
        if self._key is not None:
            msg = (
                f"key_by('{self._key}') must be followed by process(), aggregate(), window(), join(), semi_join(), anti_join(), join_as_of(), "
                f"top(), over(), first_by_time(), last_by_time(), connect() or async_wait(mode=KEYED_ORDERED), not by {follower}"
            )
            raise ValueError(msg)
        if self._is_broadcast:
            msg = f"broadcast() of '{self._origin}' can only be given to connect(), not to {follower}"
            raise ValueError(msg)

    def _check_same_pipeline(self, method: str, other: StreamBase[Any]) -> None:
        if other._pipeline is not self._pipeline:
            msg = (
                f"{method}: '{self._origin}' is of pipeline '{self._pipeline.name}', and '{other._origin}' of pipeline "
                f"'{other._pipeline.name}': a job has one pipeline"
            )
            raise ValueError(msg)

    def _check_same_type(self, method: str, other: StreamBase[Any]) -> None:
        if other._record is not self._record:
            msg = (
                f"{method}: '{self._origin}' gives {self._record.__name__}, and '{other._origin}' gives "
                f"{other._record.__name__}: map() them to one type first"
            )
            raise TypeError(msg)

    def _check_connected(self, other: StreamBase[Any]) -> None:
        if self._is_broadcast:
            msg = f"connect: '{self._origin}' is a broadcast(): call connect() on the keyed stream, and give it the broadcast"
            raise ValueError(msg)
        if self._key is None:
            msg = f"connect: '{self._origin}' needs a key: call key_by() before it"
            raise ValueError(msg)
        if other._key is None and not other._is_broadcast:
            msg = f"connect: '{other._origin}' needs a key, too: call key_by() before it, or broadcast()"
            raise ValueError(msg)
        if other._key is not None:
            self._check_same_key("connect", other)

    def _check_joined(self, join: str, other: StreamBase[Any]) -> None:
        """Check `other` for a join. Raises unless it is a stream of the same pipeline, and both are keyed by the same type."""
        if not isinstance(cast("object", other), StreamBase):
            msg = f"{join} takes a stream, not {other!r:.60}"
            raise TypeError(msg)
        for stream in (self, other):
            if stream._is_broadcast:
                msg = f"{join}: '{stream._origin}' is a broadcast(), which connect() takes: call key_by() on it instead"
                raise ValueError(msg)
            stream._check_keyed(join)
        self._check_same_pipeline(join, other)
        self._check_same_key(join, other)

    def _check_keyed(self, taker: str) -> None:
        if self._key is None:
            msg = f"{taker}: '{self._origin}' needs a key: call key_by() before it"
            raise ValueError(msg)

    def _check_mode(self, name: str, mode: OutputMode) -> None:
        is_keyed = mode is OutputMode.KEYED_ORDERED
        if self._key is not None and not is_keyed:
            msg = f"key_by('{self._key}') must be followed by process(), or '{name}' must have mode KEYED_ORDERED"
            raise ValueError(msg)
        if self._key is None and is_keyed:
            msg = f"async_wait '{name}' in mode KEYED_ORDERED needs a key: call key_by() before it"
            raise ValueError(msg)
        if self._is_broadcast:
            self._check_free(f"'{name}'")

    def _check_accepted(self, taker: str, wanted: type) -> None:
        if not issubclass(self._record, wanted):
            msg = (
                f"{taker} takes {wanted.__name__}, but '{self._origin}' before it gives {self._record.__name__}: "
                "map() the records before it, or correct the type"
            )
            raise TypeError(msg)

    def _check_argument(self, method: str, function: Callable[..., Any]) -> None:
        """Compare the annotation of the first parameter, if it has one, with the type of the records."""
        hints = hints_of(function)
        first = next(iter(inspect.signature(function).parameters), None) if hints else None
        wanted = hints.get(first) if first is not None else None
        if isinstance(wanted, type) and not issubclass(self._record, wanted):
            self._check_accepted(f"{method} {name_of(function)}", wanted)

    def _check_same_key(self, method: str, other: StreamBase[Any]) -> None:
        one, another = key_types(self._record, self._key), key_types(other._record, other._key)
        if one is None or another is None:
            self._check_decimals(method, other, one or another or ())
            return
        if one == another:
            return
        msg = (
            f"{method}: '{self._origin}' is keyed by {self._key} ({shown_types(one)}), and '{other._origin}' by {other._key} "
            f"({shown_types(another)}): a key must have the same type on both sides; key_by() a function that converts one"
        )
        raise TypeError(msg)

    def _check_decimals(self, method: str, other: StreamBase[Any], types: tuple[Any, ...]) -> None:
        """Raise `TypeError` if a function without a declared type meets decimals of declared digits: its own 1.5 would not be their 1.50."""
        digits = next(filter(None, map(digits_of, types)), None)
        if digits is not None:
            unknown = self if key_types(self._record, self._key) is None else other
            msg = (
                f"{method}: '{unknown._origin}' is keyed by {unknown._key}, which does not declare what it returns, and the other side by a decimal: "
                f"annotate it, the decimal as Annotated[Decimal, Digits{digits}], so that 1.5 and 1.50 are one key"
            )
            raise TypeError(msg)


def check_time(taker: str, time: object) -> None:
    """Raise `TypeError` unless `time` is a `TimeDomain`. `taker` names the method."""
    if not isinstance(time, TimeDomain):
        msg = f"{taker}: time must be TimeDomain.EVENT_TIME or TimeDomain.PROCESSING_TIME, not {time!r:.60}"
        raise TypeError(msg)


def in_time(state_ttl: AnyTtl | None, time: TimeDomain) -> AnyTtl | None:
    """Return a TTL that counts the time of its operator, where a duration leaves that open."""
    if isinstance(state_ttl, timedelta) and time is TimeDomain.PROCESSING_TIME:
        return StateTtl(state_ttl, time=TtlTime.PROCESSING)
    return state_ttl
