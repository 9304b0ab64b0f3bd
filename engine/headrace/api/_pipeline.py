"""The operator graph of a job: a chain of frozen operator descriptions, bound to nothing yet.

Sources, sinks and services are names here; `conf/jobs/*.yaml` binds them to paths and tables.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec

from headrace.api._async_io import Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from headrace.api._functions import AsyncFunction, KeyedFunction, KeyedProcessFunction, function_types, is_blocking
from headrace.api._materialize import Emit, Keep, Lag, OnConflict, Strategy, UpsertMaterialize
from headrace.api._retry import AsyncRetryStrategy, NoRetry
from headrace.api._ttl import StateTtl
from headrace.names import check_name


class OutputMode(enum.Enum):
    """The order in which results of async calls go on (Flink Async I/O; FLIP-425 for the keyed one)."""

    ORDERED = "ordered"
    """As the records came. Whatever comes after an element that waits, waits with it."""

    UNORDERED = "unordered"
    """Unordered in event time: between two watermarks an element that waits holds nobody up, but no result, and so
    nothing downstream, passes the next watermark before it."""

    UNORDERED_PROCESSING_TIME = "unordered_processing_time"
    """An element that waits holds nobody up, watermarks neither: it may come to operators downstream as a late one."""

    KEYED_ORDERED = "keyed_ordered"
    """After `key_by`: calls for a key are made one after the other, each when the one before it has its answer.
    Other keys overtake, up to the next watermark."""


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Where records come from."""

    name: str
    record: type[msgspec.Struct]
    event_time: str
    order_by: tuple[str, ...]
    row_kind: str | None
    out_of_orderness: timedelta


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """One call to the outside for each record."""

    name: str
    function: AsyncFunction[Any, Any]
    mode: OutputMode
    capacity: int
    timeout: timedelta
    retry: AsyncRetryStrategy
    park_after: timedelta | None = None
    recovery: RecoveryOption = RecoveryOption.COST_TIME
    on_failure: OnFailure = OnFailure.FAIL
    breaker: CircuitBreaker | None = None
    cache: LookupCache | None = None
    batch: Batching | None = None
    service: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class SideOutput:
    """A second output of a process function, bound to an append-only sink."""

    name: str
    record: type[msgspec.Struct]
    sink: str


@dataclass(frozen=True, slots=True)
class Process:
    """A keyed process function."""

    name: str
    key: str
    function: KeyedFunction
    side_outputs: tuple[SideOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where the main output goes."""

    name: str


Operator = SourceNode | AsyncWait | Process | UpsertMaterialize | SinkNode


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A job's operators, built by chaining; every call returns a new pipeline.

    Names are identifiers (lower case, digits, underscores, at most 63) and unique within the
    pipeline, else `ValueError`. An operator's name is stored with its state: renaming it starts
    with empty state.
    """

    name: str
    operators: tuple[Operator, ...] = ()
    _key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse a name that could not be a folder or a table."""
        check_name(self.name)

    def source(
        self,
        name: str,
        record: type[msgspec.Struct],
        /,
        *,
        event_time: str,
        order_by: tuple[str, ...] = (),
        row_kind: str | None = None,
        out_of_orderness: timedelta = timedelta(0),
    ) -> Pipeline:
        """Read `record`s from the source `name`.

        `event_time` is the field with the record's time (`Timestamp`). Arrival order is the
        source's own (file, row); `order_by` sorts the rows of one file instead. `row_kind` is the
        column with `+I`, `-U`, `+U` or `-D`; without one every row is an insert. The watermark
        stays `out_of_orderness` behind the latest event time.
        """
        if out_of_orderness < timedelta(0):
            msg = f"out_of_orderness of '{name}' must not be negative, not {out_of_orderness}"
            raise ValueError(msg)
        for column in (event_time, *order_by):
            check_field(record, column)
        return self._add(SourceNode(name, record, event_time, order_by, row_kind, out_of_orderness))

    def async_wait(
        self,
        name: str,
        function: AsyncFunction[Any, Any],
        /,
        *,
        mode: OutputMode = OutputMode.UNORDERED,
        capacity: int = 100,
        timeout: timedelta,
        retry: AsyncRetryStrategy | None = None,
        park_after: timedelta | None = None,
        recovery: RecoveryOption = RecoveryOption.COST_TIME,
        on_failure: OnFailure = OnFailure.FAIL,
        breaker: CircuitBreaker | None = None,
        cache: LookupCache | None = None,
        batch: Batching | None = None,
        service: str | None = None,
    ) -> Pipeline:
        """Call `function` for each record, up to `capacity` calls at once a task (waits between attempts included).

        `timeout` covers all attempts of one record, from the moment it is accepted. `mode` tells how results leave; within a
        micro-batch operators downstream see arrival order in every mode. `KEYED_ORDERED` needs `key_by` before it.

        `park_after`: an element whose next attempt is so far off, or farther, does not wait in the task but in the table
        `async_requests`, and the first micro-batch after it is due takes it up. None: it always waits in the task.
        `recovery` tells what is left of its timeout then. `on_failure` tells what becomes of one that is given up on.
        `service` names the service in the job's file whose `rate` and `concurrency` this operator shares with others.
        """
        if capacity < 1:
            msg = f"capacity of '{name}' must be at least 1, not {capacity}"
            raise ValueError(msg)
        if timeout <= timedelta(0):
            msg = f"timeout of '{name}' must be positive, not {timeout}"
            raise ValueError(msg)
        if park_after is not None and park_after < timedelta(0):
            msg = f"park_after of '{name}' must not be negative, not {park_after}"
            raise ValueError(msg)
        if self._key is not None and mode is not OutputMode.KEYED_ORDERED:
            msg = f"key_by('{self._key}') must be followed by process(), or '{name}' must have mode KEYED_ORDERED"
            raise ValueError(msg)
        if self._key is None and mode is OutputMode.KEYED_ORDERED:
            msg = f"async_wait '{name}' in mode KEYED_ORDERED needs a key: call key_by() before it"
            raise ValueError(msg)
        wait = AsyncWait(
            name,
            function,
            mode,
            capacity,
            timeout,
            retry or NoRetry(),
            park_after=park_after,
            recovery=recovery,
            on_failure=on_failure,
            breaker=breaker,
            cache=cache,
            batch=batch,
            service=service,
            key=self._key,
        )
        return replace(self, _key=None)._add(wait)  # noqa: SLF001 - its own copy

    def key_by(self, field_name: str, /) -> Pipeline:
        """Key the stream by a field; a record whose key is null goes to quarantine."""
        check_field(self.record_type(), field_name)
        return replace(self, _key=field_name)

    def process(self, name: str, function: KeyedProcessFunction[Any, Any], /) -> Pipeline:
        """Run a keyed process function; needs `key_by` before it.

        `process` and `on_timer` must both be `async def`, or both plain `def`, else `TypeError`.
        """
        if self._key is None:
            msg = f"process '{name}' needs a key: call key_by() before it"
            raise ValueError(msg)
        is_blocking(function)
        return replace(self, _key=None)._add(Process(name, self._key, function))  # noqa: SLF001 - its own copy

    def side_output(self, name: str, record: type[msgspec.Struct], /, *, sink: str) -> Pipeline:
        """Send what the last process function outputs as `name` to the append-only sink `sink`."""
        last = self.operators[-1] if self.operators else None
        if not isinstance(last, Process):
            msg = f"side output '{name}' must follow process()"
            raise TypeError(msg)
        check_name(name)
        check_name(sink)
        if any(name == other.name for other in last.side_outputs):
            msg = f"process '{last.name}' has two side outputs named '{name}'"
            raise ValueError(msg)
        sided = replace(last, side_outputs=(*last.side_outputs, SideOutput(name, record, sink)))
        return replace(self, operators=(*self.operators[:-1], sided))

    def upsert_materialize(
        self,
        name: str,
        /,
        *,
        primary_key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.LEGACY,
        emit: Emit = Emit.NET_CHANGE,
        ttl: StateTtl | None = None,
        on_conflict: OnConflict = OnConflict.KEEP_HISTORY,
        force: bool = False,
    ) -> Pipeline:
        """Reconcile a changelog whose rows may come out of order, by primary key (FLIP-544).

        `strategy` is how a key's history is laid out; the job's file may give another one, and the history stays. `ttl` ends
        a row so long after its insertion, in silence. `on_conflict` tells what happens to a second row of a key (FLIP-558).
        Where the upsert key is the primary key no history is kept, unless `force`.

        Raises `ValueError` without a primary key, for a field that the record lacks, and for a `ttl` that is renewed by
        reading, shows the dead, is prolonged by pauses, or ends in processing time what was inserted in event time.
        """
        if not primary_key:
            msg = f"upsert_materialize '{name}' needs a primary key"
            raise ValueError(msg)
        for column in (*primary_key, *(upsert_key or ())):
            check_field(self.record_type(), column)
        return self._add(
            UpsertMaterialize(
                name, primary_key, upsert_key, strategy, emit, ttl=ttl, on_conflict=on_conflict, force=force
            )
        )

    def first_value(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Pipeline:
        """Keep the first row of each key. When it is taken back, the row after it takes its place.

        Arguments and errors are as for `upsert_materialize`; the sink is merged by `key`.
        """
        return self._kept(name, Keep.FIRST, key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl)

    def last_value(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Pipeline:
        """Keep the last row of each key. When it is taken back, the row before it takes its place.

        Arguments and errors are as for `upsert_materialize`; the sink is merged by `key`.
        """
        return self._kept(name, Keep.LAST, key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl)

    def deduplicate(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        keep: Keep = Keep.FIRST,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Pipeline:
        """Keep one row of each key, of any number that come, as long as one of them was not taken back.

        With a `ttl` a key is new again so long after its row. Arguments and errors are as for `upsert_materialize`.
        """
        return self._kept(name, keep, key=key, upsert_key=None, strategy=strategy, ttl=ttl)

    def lag(
        self,
        name: str,
        function: Callable[[Any, Any], msgspec.Struct],
        /,
        *,
        record: type[msgspec.Struct],
        partition_by: tuple[str, ...],
        primary_key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        offset: int = 1,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Pipeline:
        """Make a `record` of each row and the one `offset` rows before it in its partition, or None.

        `function(row, before)` is called for a row that comes, and again for those that follow a row that is replaced or taken
        back. It must depend on its arguments alone. Rows are in order of arrival within `partition_by`, and found by
        `upsert_key` or as a whole; the sink is merged by the `primary_key` of `record`, which must tell all rows apart.

        `ttl` ends a row so long after its insertion, in silence: what was made of it, or with it, stays in the sink as it is,
        and what is made from then on does without it.

        Raises `ValueError` for an `offset` below 1, an empty key, a field that the record lacks, and a `ttl` that rows of a
        history cannot have (see `upsert_materialize`).
        """
        if offset < 1 or not primary_key or not partition_by:
            msg = f"lag '{name}' needs partition_by, a primary key, and an offset of at least 1, not {offset}"
            raise ValueError(msg)
        for column in (*partition_by, *(upsert_key or ())):
            check_field(self.record_type(), column)
        for column in primary_key:
            check_field(record, column)
        lag = Lag(
            name,
            primary_key,
            upsert_key,
            strategy,
            Emit.NET_CHANGE,
            ttl=ttl,
            force=True,
            partition_by=partition_by,
            record=record,
            function=function,
            offset=offset,
        )
        return self._add(lag)

    def sink(self, name: str, /) -> Pipeline:
        """End the pipeline in the sink `name`."""
        return self._add(SinkNode(name))

    def record_type(self) -> type[msgspec.Struct]:
        """The type of the records that leave the last operator.

        Raises `ValueError` where there is no operator yet.
        """
        for operator in reversed(self.operators):
            if isinstance(operator, SourceNode):
                return operator.record
            if isinstance(operator, AsyncWait | Process):
                return output_type(operator.function)
            if isinstance(operator, Lag):
                return operator.record
        msg = f"pipeline '{self.name}' has no source yet"
        raise ValueError(msg)

    def _kept(
        self,
        name: str,
        keep: Keep,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None,
        strategy: Strategy,
        ttl: StateTtl | None,
    ) -> Pipeline:
        made = self.upsert_materialize(
            name, primary_key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl, force=True
        )
        *others, operator = made.operators
        assert isinstance(operator, UpsertMaterialize)  # noqa: S101 - made above
        return replace(made, operators=(*others, replace(operator, keep=keep)))

    def _add(self, operator: Operator) -> Pipeline:
        check_name(operator.name)
        if self._key is not None:
            msg = f"key_by('{self._key}') must be followed by process() or async_wait(), not by '{operator.name}'"
            raise ValueError(msg)
        if self.operators and isinstance(self.operators[-1], SinkNode):
            msg = f"'{operator.name}' follows sink '{self.operators[-1].name}', which ends pipeline '{self.name}'"
            raise ValueError(msg)
        if isinstance(operator, SourceNode) is bool(self.operators):
            msg = f"pipeline '{self.name}' must start with one source, and have no other"
            raise ValueError(msg)
        if any(operator.name == other.name for other in self.operators):
            msg = f"pipeline '{self.name}' has two operators named '{operator.name}'"
            raise ValueError(msg)
        return replace(self, operators=(*self.operators, operator))


def output_type(function: AsyncFunction[Any, Any] | KeyedFunction) -> type[msgspec.Struct]:
    """Return the type of the records that a function emits; `TypeError` as `function_types`."""
    return function_types(function)[1]


def input_type(function: AsyncFunction[Any, Any] | KeyedFunction) -> type[msgspec.Struct]:
    """Return the type of the records of a function's first input; `TypeError` as `function_types`."""
    return function_types(function)[0][0]


def check_field(record: type[msgspec.Struct], name: str) -> None:
    """Raise `ValueError` for a field that the record lacks."""
    if name not in record.__struct_fields__:
        known = ", ".join(record.__struct_fields__)
        msg = f"{record.__name__} has no field '{name}'; it has {known}"
        raise ValueError(msg)
