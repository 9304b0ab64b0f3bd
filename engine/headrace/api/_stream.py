"""Streams: what a pipeline is built with. Every operator method returns the next stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from headrace.api._async_io import Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from headrace.api._functions import (
    AsyncFunction,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    function_types,
    is_blocking,
)
from headrace.api._graph import (
    AssignEventTime,
    AsyncWait,
    Filter,
    FlatMap,
    Input,
    KeyBy,
    Map,
    Node,
    Operator,
    OutputMode,
    Process,
    SideOutput,
    SinkNode,
    Union,
    name_of,
)
from headrace.api._materialize import Emit, Keep, Lag, OnConflict, Strategy, UpsertMaterialize
from headrace.api._retry import AsyncRetryStrategy, NoRetry
from headrace.api._stream_types import (
    check_callable,
    check_field,
    check_key_field,
    check_plain,
    check_record,
    hints_of,
    input_type,
    key_types,
    output_type,
    returned_type,
    shown_types,
)
from headrace.api._ttl import StateTtl
from headrace.names import check_name

if TYPE_CHECKING:
    from headrace.api._pipeline import Pipeline

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class Stream(Generic[R]):
    """Records of one type on their way through a pipeline.

    A stream may be used any number of times: each use gets all records. Methods take it to an operator and return the
    operator's output; `sink` ends it and returns the pipeline. `key_by` returns the same records, keyed: only `process`,
    `connect` and `async_wait(mode=KEYED_ORDERED)` may follow it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        node: Node,
        record: type[R],
        *,
        side: str | None = None,
        key: KeyBy | None = None,
        is_broadcast: bool = False,
    ) -> None:
        """Make a stream of what `node` sends on; pipelines and streams do that themselves."""
        self._pipeline = pipeline
        self._node = node
        self._record = record
        self._side = side
        self._key = key
        self._is_broadcast = is_broadcast

    def __repr__(self) -> str:
        """Name the operator that the stream comes from, and the type of its records."""
        return f"<Stream of {self._record.__name__} from '{self._origin}'>"

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators of the pipeline so far, in the order in which they were added."""
        return self._pipeline.operators

    def record_type(self) -> type[R]:
        """Return the type of the stream's records."""
        return self._record

    # ------------------------------------------------------------------------------------------------ stateless

    def map(self, function: Callable[[R], S], /, *, record: type[S] | None = None) -> Stream[S]:
        """Send on one record for each: `function(record)`.

        `record` is the type of what it returns; unless given, the function's annotation says it. The function is plain, and
        depends on its argument alone: it may be called again for the same record. Order, event time and row kind stay.

        Raises `TypeError` for a coroutine or a generator function, and without a type.
        """
        check_plain("map", function)
        self._check_argument("map", function)
        made = returned_type("map", function) if record is None else record
        check_record(f"map({name_of(function)})", made)
        return self._then(Map(function, made), made)

    def filter(self, predicate: Callable[[R], object], /) -> Stream[R]:
        """Send on the records for which `predicate(record)` is true. See `map` for what the function must be."""
        check_plain("filter", predicate)
        self._check_argument("filter", predicate)
        return self._then(Filter(predicate), self._record)

    def flat_map(self, function: Callable[[R], Iterable[S]], /, *, record: type[S]) -> Stream[S]:
        """Send on the records of type `record` that `function(record)` returns or yields, in their order: none, one or many.

        See `map` for what the function must be; it may be a generator.
        """
        check_callable("flat_map", function)
        self._check_argument("flat_map", function)
        check_record(f"flat_map({name_of(function)})", record)
        return self._then(FlatMap(function, record), record)

    def assign_event_time(self, time: str | Callable[[R], int], /) -> Stream[R]:
        """Give records another event time: a field (`Timestamp`, not optional), or what `time(record)` returns (ms since 1970, UTC).

        Operators see it as `ctx.timestamp`, and TTL and lateness go by it. The watermark stays that of the sources: where the
        new times lie further back, give the sources an `out_of_orderness` that covers it, else records are late.

        Raises `ValueError` for a field that the record lacks.
        """
        if isinstance(time, str):
            check_field(self._record, time)
        else:
            check_plain("assign_event_time", time)
            self._check_argument("assign_event_time", time)
        return self._then(AssignEventTime(time), self._record)

    def union(self, *others: Stream[R]) -> Stream[R]:
        """Return the records of this stream and the `others` as one stream, in the order of their arrival.

        A stream may be united with itself: each record then comes twice.

        Raises `TypeError` unless all have the same type, `ValueError` without others and for streams of another pipeline.
        """
        if not others:
            msg = f"union of '{self._origin}' needs at least one other stream"
            raise ValueError(msg)
        for other in others:
            self._check_same_pipeline("union", other)
            if other._record is not self._record:
                msg = (
                    f"union: '{self._origin}' gives {self._record.__name__}, and '{other._origin}' gives "
                    f"{other._record.__name__}: map() them to one type first"
                )
                raise TypeError(msg)
        return self._then(Union(), self._record, *others)

    # ---------------------------------------------------------------------------------------------------- keyed

    def key_by(self, key: str | Callable[[R], Any], /, *more: str) -> Stream[R]:
        """Key the stream by a field, by several, or by what a function returns; a record whose key is null goes to quarantine.

        A key is text, a whole number, a float, a truth value, or a tuple of them. Several fields make a tuple; one of them
        null makes the key null. A function is plain, and depends on its argument alone; annotate what it returns, and
        `connect` compares the types of the keys.

        Raises `ValueError` for a field that the record lacks, or that holds a list, a map or a record, and for fields after a
        function.
        """
        if not isinstance(key, str):
            check_plain("key_by", key)
            if more:
                msg = (
                    f"key_by({name_of(key)}) takes no fields after a function: let the function return them in a tuple"
                )
                raise ValueError(msg)
            self._check_argument("key_by", key)
            return self._keyed(KeyBy(function=key))
        for column in (key, *more):
            check_key_field(self._record, column)
        return self._keyed(KeyBy((key, *more)))

    def broadcast(self) -> Stream[R]:
        """Return the same records for all tasks of a keyed function: give it to `connect` of a keyed stream.

        The records change broadcast state there, alike in all tasks (`KeyedBroadcastFunction`). Raises `ValueError` for a
        stream that is keyed.
        """
        self._check_free("broadcast()")
        return Stream(self._pipeline, self._node, self._record, side=self._side, is_broadcast=True)

    def connect(self, other: Stream[S], /) -> ConnectedStreams[R, S]:
        """Return two keyed streams for one function with state and timers of its own for each key: `process` must follow.

        `other` is keyed by the same type, or a `broadcast()`.

        Raises `ValueError` where a stream is not keyed, or comes from another pipeline; `TypeError` where the keys' types differ.
        """
        self._check_same_pipeline("connect", other)
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
            self._check_same_key(other)
        return ConnectedStreams(self, other)

    def process(self, name: str, function: KeyedProcessFunction[Any, S], /) -> ProcessedStream[S]:
        """Run a keyed process function; needs `key_by` before it.

        `process` and `on_timer` must both be `async def`, or both plain `def`, else `TypeError`, as when the function takes
        other records than these.
        """
        if self._key is None:
            msg = f"process '{name}' needs a key: call key_by() before it"
            raise ValueError(msg)
        self._check_function(f"process '{name}'", function, KeyedProcessFunction)
        is_blocking(function)
        takes, gives = input_type(function), cast("type[S]", output_type(function))
        self._check_takes(f"process '{name}'", takes)
        node = self._pipeline._add(Process(name, str(self._key), function), self._use())
        return ProcessedStream(self._pipeline, node, gives)

    # ----------------------------------------------------------------------------------------- calls, materializers

    def async_wait(
        self,
        name: str,
        function: AsyncFunction[Any, S],
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
    ) -> Stream[S]:
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
        is_keyed = mode is OutputMode.KEYED_ORDERED
        if self._key is not None and not is_keyed:
            msg = f"key_by('{self._key}') must be followed by process(), or '{name}' must have mode KEYED_ORDERED"
            raise ValueError(msg)
        if self._key is None and is_keyed:
            msg = f"async_wait '{name}' in mode KEYED_ORDERED needs a key: call key_by() before it"
            raise ValueError(msg)
        if self._is_broadcast:
            self._check_free(f"'{name}'")
        self._check_function(f"async_wait '{name}'", function, AsyncFunction)
        takes, gives = input_type(function), cast("type[S]", output_type(function))
        self._check_takes(f"async_wait '{name}'", takes)
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
        return Stream(self._pipeline, self._pipeline._add(wait, self._use()), gives)

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
    ) -> Stream[R]:
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
            check_field(self._record, column)
        materializer = UpsertMaterialize(
            name, primary_key, upsert_key, strategy, emit, ttl=ttl, on_conflict=on_conflict, force=force
        )
        return self._materialized(materializer, self._record)

    def first_value(
        self,
        name: str,
        /,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
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
    ) -> Stream[R]:
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
    ) -> Stream[R]:
        """Keep one row of each key, of any number that come, as long as one of them was not taken back.

        With a `ttl` a key is new again so long after its row. Arguments and errors are as for `upsert_materialize`.
        """
        return self._kept(name, keep, key=key, upsert_key=None, strategy=strategy, ttl=ttl)

    def lag(
        self,
        name: str,
        function: Callable[[Any, Any], S],
        /,
        *,
        record: type[S],
        partition_by: tuple[str, ...],
        primary_key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None = None,
        offset: int = 1,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[S]:
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
            check_field(self._record, column)
        check_record(f"lag '{name}'", record)
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
        return self._materialized(lag, record)

    def sink(self, name: str, /) -> Pipeline:
        """End the stream in the sink `name`, and return the pipeline.

        Raises `ValueError` for a stream that is keyed, or a broadcast.
        """
        self._check_free(f"sink '{name}'")
        self._pipeline._add(SinkNode(name), self._use())
        return self._pipeline

    # ------------------------------------------------------------------------------------------------- how it's done

    @property
    def _origin(self) -> str:
        """Name the operator that sends these records, for errors."""
        name = self._node.operator.name
        return name if self._side is None else f"{name}.{self._side}"

    def _use(self) -> Input:
        return Input(self._node, self._side, self._key, self._is_broadcast)

    def _keyed(self, key: KeyBy) -> Stream[R]:
        self._check_free("key_by()")
        return Stream(self._pipeline, self._node, self._record, side=self._side, key=key)

    def _then(self, operator: Operator, record: type[S], *others: Stream[Any]) -> Stream[S]:
        for stream in (self, *others):
            stream._check_free(f"'{operator.name}'")
        node = self._pipeline._add(operator, *(stream._use() for stream in (self, *others)))
        return Stream(self._pipeline, node, record)

    def _materialized(self, materializer: UpsertMaterialize, record: type[S]) -> Stream[S]:
        self._check_free(f"'{materializer.name}'")
        key = KeyBy(materializer.keyed_by)
        use = Input(self._node, self._side, key)
        return Stream(self._pipeline, self._pipeline._add(materializer, use), record)

    def _check_free(self, follower: str) -> None:
        if self._key is not None:
            msg = (
                f"key_by('{self._key}') must be followed by process(), connect() or async_wait(mode=KEYED_ORDERED), "
                f"not by {follower}"
            )
            raise ValueError(msg)
        if self._is_broadcast:
            msg = f"broadcast() of '{self._origin}' can only be given to connect(), not to {follower}"
            raise ValueError(msg)

    def _check_same_pipeline(self, method: str, other: Stream[Any]) -> None:
        if other._pipeline is not self._pipeline:
            msg = (
                f"{method}: '{self._origin}' is of pipeline '{self._pipeline.name}', and '{other._origin}' of pipeline "
                f"'{other._pipeline.name}': a job has one pipeline"
            )
            raise ValueError(msg)

    def _check_takes(self, taker: str, wanted: type) -> None:
        if not issubclass(self._record, wanted):
            msg = (
                f"{taker} takes {wanted.__name__}, but '{self._origin}' before it gives {self._record.__name__}: "
                "map() the records before it, or correct the type"
            )
            raise TypeError(msg)

    def _check_function(self, taker: str, function: object, wanted: type) -> None:
        if not isinstance(function, wanted):
            got = (
                f"the class {function.__name__}; write {function.__name__}()"
                if isinstance(function, type)
                else repr(function)
            )
            msg = f"{taker} takes an instance of a class derived from {wanted.__name__}, not {got:.80}"
            raise TypeError(msg)

    def _check_argument(self, method: str, function: Callable[..., Any]) -> None:
        """Compare the first parameter's annotation, where there is one."""
        hints = hints_of(function)
        first = next(iter(inspect.signature(function).parameters), None) if hints else None
        wanted = hints.get(first) if first is not None else None
        if isinstance(wanted, type) and not issubclass(self._record, wanted):
            self._check_takes(f"{method} {name_of(function)}", wanted)

    def _check_same_key(self, other: Stream[Any]) -> None:
        one, another = key_types(self._record, self._key), key_types(other._record, other._key)
        if one is None or another is None or one == another:
            return
        msg = (
            f"connect: '{self._origin}' is keyed by {self._key} ({shown_types(one)}), and '{other._origin}' by {other._key} "
            f"({shown_types(another)}): a key must have the same type on both sides; key_by() a function that converts one"
        )
        raise TypeError(msg)

    def _kept(
        self,
        name: str,
        keep: Keep,
        *,
        key: tuple[str, ...],
        upsert_key: tuple[str, ...] | None,
        strategy: Strategy,
        ttl: StateTtl | None,
    ) -> Stream[R]:
        made = self.upsert_materialize(
            name, primary_key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl, force=True
        )
        node = made._node
        assert isinstance(node.operator, UpsertMaterialize)  # noqa: S101 - made above
        node.operator = replace(node.operator, keep=keep)
        return made


class ProcessedStream(Stream[R]):
    """What a keyed process function collects. Its side outputs are streams, too."""

    def side(self, name: str, record: type[S], /) -> Stream[S]:
        """Return what the function outputs as `name`: `ctx.output(name, record)`, a stream like any other.

        Raises `ValueError` where `name` was declared with another type.
        """
        check_name(name)
        check_record(f"side('{name}')", record)
        process = self._process
        declared = next((side for side in process.side_outputs if side.name == name), None)
        if declared is None:
            self._node.operator = replace(process, side_outputs=(*process.side_outputs, SideOutput(name, record)))
        elif declared.record is not record:
            msg = (
                f"side output '{name}' of '{process.name}' has records of type {declared.record.__name__}, "
                f"not {record.__name__}"
            )
            raise ValueError(msg)
        return Stream(self._pipeline, self._node, record, side=name)

    def side_output(self, name: str, record: type[msgspec.Struct], /, *, sink: str) -> ProcessedStream[R]:
        """Send what the function outputs as `name` to the append-only sink `sink`, and return this stream again."""
        process = self._process
        if any(name == other.name for other in process.side_outputs):
            msg = f"process '{process.name}' has two side outputs named '{name}'"
            raise ValueError(msg)
        check_name(sink)
        self.side(name, record).sink(sink)
        sides = tuple(replace(side, sink=sink) if side.name == name else side for side in self._process.side_outputs)
        self._node.operator = replace(self._process, side_outputs=sides)
        return self

    @property
    def _process(self) -> Process:
        assert isinstance(self._node.operator, Process)  # noqa: S101 - only process() makes such streams
        return self._node.operator


class ConnectedStreams(Generic[R, S]):
    """Two keyed streams, or a keyed one and a broadcast, on their way to one function."""

    def __init__(self, first: Stream[R], second: Stream[S]) -> None:
        """Hold the two; `Stream.connect` makes it."""
        self._first = first
        self._second = second

    def process(
        self, name: str, function: KeyedCoProcessFunction[Any, Any, T] | KeyedBroadcastFunction[Any, Any, T], /
    ) -> ProcessedStream[T]:
        """Run a function of two inputs: `process1` gets the records of the stream on which `connect` was called, `process2` the others.

        Behind `connect(rules.broadcast())` it is a `KeyedBroadcastFunction`: `process` and `process_broadcast`. The records come
        in the order of their arrival. Raises `TypeError` for another kind of function, and for one that takes
        other records than these.
        """
        first, second = self._first, self._second
        taker = f"process '{name}'"
        wanted_class = KeyedBroadcastFunction if second._is_broadcast else KeyedCoProcessFunction
        first._check_function(taker, function, wanted_class)
        is_blocking(function)
        takes, gives = function_types(function)
        first._check_takes(taker, takes[0])
        second._check_takes(taker, takes[1])
        process = Process(name, f"{first._key} | {second._key or 'broadcast'}", function)
        node = first._pipeline._add(process, first._use(), second._use())
        return ProcessedStream(first._pipeline, node, cast("type[T]", gives))
