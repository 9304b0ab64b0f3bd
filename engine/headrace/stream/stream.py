"""Streams, which pipelines are built with. Every operator method returns the next stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from headrace.api.changelog import ChangelogMode
from headrace.api.changelog_inference import check_normalized
from headrace.api.functions import (
    AsyncFunction,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    function_types,
    is_blocking,
)
from headrace.api.graph import (
    AssignEventTime,
    AsyncWait,
    DropUpdateBefore,
    Filter,
    FlatMap,
    Input,
    KeyBy,
    Map,
    Operator,
    OperatorFunction,
    OutputMode,
    Process,
    SideOutput,
    SinkNode,
    SourceNode,
    SparkStep,
    Union,
    UpsertMaterialize,
    name_of,
)
from headrace.api.options import WindowFunction, Windows
from headrace.api.services import (
    AsyncRetryStrategy,
    Batching,
    CircuitBreaker,
    LookupCache,
    NoRetry,
    OnFailure,
    RecoveryOption,
    check_limits,
)
from headrace.api.ttl import Life, Lifetime, ttl_of
from headrace.api.types import (
    check_callable,
    check_emitted,
    check_field,
    check_function,
    check_kept_field,
    check_key_field,
    check_plain,
    check_record,
    check_tables,
    input_type,
    output_type,
    returned_type,
)
from headrace.names import check_name
from headrace.stream.aggregation import GroupedStream, WindowedStream
from headrace.stream.base import StreamBase
from headrace.stream.changelog import ChangelogStream
from headrace.stream.joins import JoinableStream, TemporalStream
from headrace.stream.library import operator_library
from headrace.stream.ranking import RankedStream

if TYPE_CHECKING:
    from headrace.stream.pipeline import Pipeline


R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class Stream(ChangelogStream[R], GroupedStream[R], JoinableStream[R], RankedStream[R], TemporalStream[R]):
    """Records of one type on their way through a pipeline.

    A stream may be used any number of times: each use gets all records. A method sends them to an operator and returns
    the operator's output; `sink` ends it and returns the pipeline. `key_by` returns the same records, keyed: only
    `process`, `aggregate`, `window`, `join`, `join_as_of`, `top`, `first_by_time`, `last_by_time`, `connect` and
    `async_wait(mode=KEYED_ORDERED)` may follow it.
    """

    # --------------------------------------------------------------------------------------- Spark, over a source

    def sql(self, query: str, /, *, record: type[S] | None = None, tables: Collection[str] = ()) -> Stream[S]:
        """Let Spark transform each row of a source by a query: columns, filters, `explode`, joins with small tables.

        The query reads the table that has the source's name: its columns are the fields of the source's record, times
        are timestamps in UTC. `record` is the type of the result's rows (default: the source's record); the source's
        event time, `order_by` and row kind must be among its columns. `tables` are names of dimension tables, which the
        job's file binds to Delta tables (`sources.NAME.tables`); all rows of a micro-batch see one version of them.

        The query must handle each row by itself: the run refuses aggregates, windows, distinct, sort, limit
        and functions whose results are not deterministic.

        Raises `ValueError` unless this is the stream of a source, for a field that `record` lacks, and for an empty
        query.
        """
        if not query.strip():
            msg = f"sql() of '{self._origin}' takes a query, not {query!r:.60}"
            raise ValueError(msg)
        return self._in_spark(
            "sql()", record, lambda takes, gives, names: SparkStep(takes, gives, query, None, names), tables
        )

    def spark(
        self, function: Callable[..., Any], /, record: type[S] | None = None, *, tables: Collection[str] = ()
    ) -> Stream[S]:
        """Let Spark transform each row of a source by a function: `function(df)` returns the DataFrame of the result.

        `function` gets a `pyspark.sql.DataFrame` of the source and, by their names, those of `tables`. It runs in the
        driver, once or several times for each micro-batch, and must build the same plan each time. For the rest see
        `sql`.

        Raises `ValueError` and `TypeError` as `sql` does.
        """
        check_plain("spark", function)
        return self._in_spark(
            "spark()", record, lambda takes, gives, names: SparkStep(takes, gives, None, function, names), tables
        )

    # ------------------------------------------------------------------------------------------------ stateless

    def map(
        self, function: Callable[[R], S], /, *, record: type[S] | None = None, keeps: Collection[str] = ()
    ) -> Stream[S]:
        """Emit one record for each record: `function(record)`.

        `record` is the type of the result; by default the function's annotation names it. The function is plain, and
        depends on its argument alone: it may be called again for the same record. Order, event time and row kind stay.
        `keeps` are fields that a result has with the values of its record, so that keys stay known; a result with
        another value fails the run.

        Raises `TypeError` for a coroutine or a generator function, and without a type; `ValueError` for a field of
        `keeps` that one of the types lacks, and for a stream of upserts whose key is not in `keeps`.
        """
        check_plain("map", function)
        self._check_argument("map", function)
        output = returned_type("map", function) if record is None else record
        check_record(f"map({name_of(function)})", output)
        return self._then(Map(function, output, self._kept_fields(keeps, output)), output)

    def filter(self, predicate: Callable[[R], object], /) -> Stream[R]:
        """Emit the records for which `predicate(record)` is true. The predicate has the rules of `map`'s function.

        In a changelog each row is looked at by itself. Of an update whose new row is refused, the `-U` of the old row is
        left, which `upsert_materialize`, aggregates and joins take back. In a stream of upserts, which has no `-U`, a
        refused row becomes a `-D` of its key, and each `-D` is emitted.

        Raises `TypeError` for a coroutine or a generator function.
        """
        check_plain("filter", predicate)
        self._check_argument("filter", predicate)
        return self._then(Filter(predicate, self._changes.mode.is_upsert), self._record)

    def flat_map(
        self, function: Callable[[R], Iterable[S]], /, *, record: type[S], keeps: Collection[str] = ()
    ) -> Stream[S]:
        """Emit the records of type `record` that `function(record)` returns or yields, in their order: none, one or many.

        The function has the rules of `map`'s, but may be a generator; `keeps` is as for `map`.

        Raises `TypeError` for a coroutine function; `ValueError` for a field of `keeps` that one of the types lacks, and
        for a stream of upserts.
        """
        check_callable("flat_map", function)
        self._check_argument("flat_map", function)
        check_record(f"flat_map({name_of(function)})", record)
        return self._then(FlatMap(function, record, self._kept_fields(keeps, record)), record)

    def drop_update_before(self, *key: str) -> Stream[R]:
        """Emit the changes without the rows before updates (row kind -U): `DropUpdateBefore` in Flink's plans.

        `key` are the fields that identify a row: the result is a stream of upserts by them. They may be left out where
        the stream has one known unique key, as behind `aggregate`. It is for operators that replace a row by the row
        after the update: nothing is called, sent and processed for rows that they would ignore. An update that changes
        the key of a later `key_by` leaves the row of the former key in place. The step reads only the row kinds, so rows
        of a source stay columns.

        Raises `ValueError` for a field that the record lacks, without a key, and behind a step that may have dropped
        rows after updates (`filter`, `flat_map`): call it before that step.
        """
        for column in key:
            check_field(self._record, column)
        return self._then(DropUpdateBefore(key), self._record)

    def normalize(
        self, name: str, /, *, key: tuple[str, ...] = (), state_ttl: Life = Lifetime.FOREVER
    ) -> OperatorStream[R]:
        """Make whole updates of a stream of upserts: `-U` with the last row of the key before each `+U`, `-D` with the last row.

        `key` are the fields that identify a row; by default the stream's own key, where it has one. So aggregates, windows
        and joins can follow. An equal row emits nothing. A `-D` needs only the fields of the key, if nothing but
        `normalize` reads the source; a retraction of a key without a row goes to the quarantine, and is counted. Rows of
        sources with `row_kind` may lack their `-U`, and rows of others may come again with other values.

        `state_ttl` bounds the state: a duration or `StateTtl` after which a key without rows is forgotten. Nothing is
        emitted then, and the next row of the key is an insert: operators behind it count it beside the forgotten one.

        Raises `ValueError` without a key, for a field that the record lacks, for a key other than that of the upserts,
        and behind an operator that may change the order of a key's rows.
        """
        taker, changes = f"normalize '{name}'", self._changes
        fields = key or changes.mode.key or (changes.unique[0] if len(changes.unique) == 1 else ())
        check_normalized(taker, fields, changes)
        for column in fields:
            check_key_field(self._record, column)
        try:
            ttl = ttl_of(state_ttl, kept="the last row of each key", after="a key is new again")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{taker}: {error}") from None
        function = operator_library().normalize(self._record, ttl=ttl)
        return self._keyed(KeyBy(fields))._operated(name, function, self._record)

    def assign_event_time(self, time: str | Callable[[R], int], /) -> Stream[R]:
        """Give records another event time: a field (`Timestamp`, not optional), or what `time(record)` returns (ms since 1970, UTC).

        Operators read it as `ctx.timestamp`, and TTL and lateness use it. The watermark stays that of the sources:
        where the new times lie further back, give the sources an `out_of_orderness` that covers them, else records are
        late.

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

        A stream may be united with itself: each record is then emitted twice.

        Raises `TypeError` unless all have the same type, `ValueError` without others, for streams of another pipeline,
        and for a stream of upserts.
        """
        if not others:
            msg = f"union of '{self._origin}' needs at least one other stream"
            raise ValueError(msg)
        for other in others:
            self._check_same_pipeline("union", other)
            self._check_same_type("union", other)
        return self._then(Union(), self._record, *others)

    # ---------------------------------------------------------------------------------------------------- keyed

    def key_by(self, key: str | Callable[[R], Any], /, *more: str) -> Stream[R]:
        """Key the stream by a field, by several, or by a function of the record; a record whose key is null goes to quarantine.

        A key is text, a whole number, a float, a truth value, or a tuple of them. Several fields make a tuple; a null
        field makes the key null. A function is plain, and depends on its argument alone; annotate its return type, so
        that `connect` can compare the types of the keys.

        Raises `ValueError` for a field that the record lacks, or that holds a list, a map or a record, and for fields
        after a function.
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
        self._check_connected(other)
        return ConnectedStreams(self, other)

    def process(
        self, name: str, function: KeyedProcessFunction[Any, S], /, *, emits: ChangelogMode | None = None
    ) -> ProcessedStream[S]:
        """Run a keyed process function; needs `key_by` before it.

        `process` and `on_timer` must both be `async def`, or both plain `def`. `name` is stored with the function's
        state. `emits` declares what the function's changes mean: `ChangelogMode.INSERT`, `ChangelogMode.RETRACT` or
        `ChangelogMode.upsert("id")`. None: they may retract rows, and no key is known; an operator that takes only
        inserts fails the run at the first `-U` or `-D`. The run also fails where the function emits a row kind that it does not
        declare.

        Raises `ValueError` for a stream that is not keyed; `TypeError` for methods of different kinds, and for a
        function that takes records of another type.
        """
        if self._key is None:
            msg = f"process '{name}' needs a key: call key_by() before it"
            raise ValueError(msg)
        check_function(f"process '{name}'", function, KeyedProcessFunction)
        is_blocking(function)
        takes, gives = input_type(function), cast("type[S]", output_type(function))
        self._check_accepted(f"process '{name}'", takes)
        check_emitted(f"process '{name}'", emits, gives)
        node = self._pipeline._add(Process(name, str(self._key), function, emits=emits), self._use())
        return ProcessedStream(self._pipeline, node, gives)

    def window(self, windows: Windows, /) -> WindowedStream[R]:
        """Group the records of each key by windows of event time (from `headrace.operators`); `aggregate`, `top` or a join must follow.

        Raises `ValueError` for a stream that is not keyed, `TypeError` for other windows.
        """
        if self._key is None:
            msg = f"window() of '{self._origin}' needs a key: call key_by() before it"
            raise ValueError(msg)
        check_function("window()", windows, Windows)
        return WindowedStream(self, windows)

    # ----------------------------------------------------------------------------------------- calls, sinks

    def async_wait(
        self,
        name: str,
        function: AsyncFunction[Any, S],
        /,
        *,
        mode: OutputMode = OutputMode.UNORDERED,
        capacity: int = 100,
        timeout: timedelta | None,
        retry: AsyncRetryStrategy | None = None,
        park_after: timedelta | None = None,
        recovery: RecoveryOption = RecoveryOption.COST_TIME,
        on_failure: OnFailure = OnFailure.FAIL,
        breaker: CircuitBreaker | None = None,
        cache: LookupCache | None = None,
        batch: Batching | None = None,
        service: str | None = None,
    ) -> Stream[S]:
        """Call `function` for each record, at most `capacity` calls at once per task (elements between attempts included).

        `timeout` covers all attempts of one record, from the moment it is accepted. None: there is no limit, and a call
        that never ends lasts until the end of the run, run after run. `mode` is the order of the results;
        within a micro-batch operators downstream see arrival order in every mode. `KEYED_ORDERED` needs `key_by` before
        it.

        `park_after`: an element whose next attempt is at least this far off does not wait in the task but in the table
        `async_requests`, and the first micro-batch after it is due resumes it. None: it always waits in the task.
        `recovery` says how much of its timeout is left then. `on_failure` says what happens to an element that fails
        for good. `service` names the service in the job's file whose `rate` and `concurrency` this operator shares with
        others.

        A stream that may retract rows needs a function with `deterministic = True`. In a stream of upserts
        (`drop_update_before`), a `-D` makes no call, and a record without a result deletes its key:
        `AsyncFunction.deleted` makes the `-D`. The results then have the fields of the key with the record's values, and
        the mode is `ORDERED`, or `KEYED_ORDERED` by fields of the key.

        Raises `ValueError` for a `capacity` below 1, a `timeout` that is not positive, a negative `park_after`, a
        `mode` that does not fit the stream's key, and for changes that the call could not keep right; `TypeError` for a function that is no `AsyncFunction` or takes
        records of another type, and for a `timeout` or `park_after` that is no `timedelta`.
        """
        check_limits(name, capacity, timeout, park_after)
        self._check_mode(name, mode)
        check_function(f"async_wait '{name}'", function, AsyncFunction)
        takes, gives = input_type(function), cast("type[S]", output_type(function))
        self._check_accepted(f"async_wait '{name}'", takes)
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
            upsert_key=self._changes.mode.key,
            takes_inserts_alone=not self._changes.is_known and not function.deterministic,
        )
        return Stream(self._pipeline, self._pipeline._add(wait, self._use()), gives)

    def sink(self, name: str, /) -> Pipeline:
        """End the stream in the sink `name`, and return the pipeline.

        Raises `ValueError` for a stream that is keyed, or a broadcast.
        """
        self._check_free(f"sink '{name}'")
        self._pipeline._add(SinkNode(name), self._use())
        return self._pipeline

    # ------------------------------------------------------------------------------------------------- private

    def _keyed(self, key: KeyBy) -> Stream[R]:
        self._check_free("key_by()")
        return Stream(self._pipeline, self._node, self._record, side=self._side, key=key)

    def _kept_fields(self, keeps: Collection[str], record: type[msgspec.Struct]) -> tuple[str, ...]:
        """Check `keeps`. Raises `TypeError` for a single text, `ValueError` for a field that one of the types lacks."""
        if isinstance(keeps, str):
            msg = f"keeps takes several names, as in keeps=('{keeps}',), not a text"
            raise TypeError(msg)
        for column in keeps:
            check_field(self._record, column)
            check_field(record, column)
        return tuple(keeps)

    def _in_spark(
        self,
        method: str,
        record: type[S] | None,
        step: Callable[[type[R], type[S], tuple[str, ...]], SparkStep],
        tables: Collection[str],
    ) -> Stream[S]:
        source = cast("SourceNode", self._node.operator)
        is_source = isinstance(self._node.operator, SourceNode)
        if not is_source:
            msg = (
                f"{method} of '{self._origin}': Spark's step must come first, directly behind source(). Let it make the rows "
                "there, or use map(), filter() or flat_map() here"
            )
            raise ValueError(msg)
        gives = cast("type[S]", self._record) if record is None else record
        check_record(f"{method} of '{source.name}'", gives)
        for name in dict.fromkeys((source.event_time, *source.order_by)):
            check_kept_field(f"{method} of '{source.name}'", gives, name)
        names = check_tables(f"{method} of '{source.name}'", tables, source.name)
        return self._then(step(self._record, gives, names), gives)

    def _then(self, operator: Operator, record: type[S], *others: Stream[Any]) -> Stream[S]:
        for stream in (self, *others):
            stream._check_free(f"'{operator.name}'")
        node = self._pipeline._add(operator, *(stream._use() for stream in (self, *others)))
        return Stream(self._pipeline, node, record)

    def _operated(
        self, name: str, function: KeyedFunction, record: type[S], *others: StreamBase[Any]
    ) -> OperatorStream[S]:
        streams = (self, *others)
        key = " | ".join(str(stream._key) for stream in streams)
        node = self._pipeline._add(Process(name, key, function), *(stream._use() for stream in streams))
        return OperatorStream(self._pipeline, node, record)

    def _aggregated(self, name: str, function: WindowFunction[Any, Any], record: type[S]) -> AggregatedStream[S]:
        return AggregatedStream(self._pipeline, self._operated(name, function, record)._node, record)

    def _materialized(self, materializer: UpsertMaterialize, record: type[S]) -> Stream[S]:
        self._check_free(f"'{materializer.name}'")
        if materializer.upsert_key is None:
            materializer = replace(materializer, upsert_key=materializer.inferred_key(self._changes))
        if not self._changes.keeps_order_of(materializer.keyed_by):
            # A late -U would remove the row that replaced its own: rows are found as a whole, in a history.
            materializer = replace(materializer, upsert_key=None)
        use = Input(self._node, self._side, KeyBy(materializer.keyed_by))
        return Stream(self._pipeline, self._pipeline._add(materializer, use), record)


class ProcessedStream(Stream[R]):
    """Records that a keyed process function collects. Its side outputs are streams, too."""

    def side(self, name: str, record: type[S], /) -> Stream[S]:
        """Return the side output `name` of the function, `ctx.output(name, record)`, as a stream.

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
        """Send the side output `name` of the function to the append-only sink `sink`, and return this stream again.

        Raises `ValueError` where the function has a side output `name` already.
        """
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


class OperatorStream(ProcessedStream[R]):
    """Output of an operator of `headrace.operators`. Only the operator's own side outputs exist."""

    def side(self, name: str, record: type[S], /) -> Stream[S]:
        """Return a side output of the operator: `side("late", Order)`, with the type of the records.

        Raises `ValueError` for a name that the operator does not have, `TypeError` for another type.
        """
        process = self._process
        assert isinstance(process.function, OperatorFunction)  # noqa: S101 - only such functions make such streams
        process.function.declare_side(process.name, name, record)
        return super().side(name, record)


class AggregatedStream(OperatorStream[R]):
    """Results of windows. Records that are too late are its side output `late`."""


class ConnectedStreams(Generic[R, S]):
    """Two keyed streams, or a keyed one and a broadcast, on their way to one function."""

    def __init__(self, first: Stream[R], second: Stream[S]) -> None:
        """Hold the two streams; `Stream.connect` calls this."""
        self._first = first
        self._second = second

    def process(
        self,
        name: str,
        function: KeyedCoProcessFunction[Any, Any, T] | KeyedBroadcastFunction[Any, Any, T],
        /,
        *,
        emits: ChangelogMode | None = None,
    ) -> ProcessedStream[T]:
        """Run a function of two inputs: `process1` gets the records of the stream on which `connect` was called, `process2` the others.

        After `connect(rules.broadcast())` it is a `KeyedBroadcastFunction`: `process` and `process_broadcast`. Records
        come in the order of their arrival. `emits` is as for `Stream.process`. Raises `TypeError` for another kind of function, and for one that takes
        records of other types.
        """
        first, second = self._first, self._second
        taker = f"process '{name}'"
        wanted_class = KeyedBroadcastFunction if second._is_broadcast else KeyedCoProcessFunction
        check_function(taker, function, wanted_class)
        is_blocking(function)
        takes, gives = function_types(function)
        first._check_accepted(taker, takes[0])
        second._check_accepted(taker, takes[1])
        check_emitted(taker, emits, cast("type[T]", gives))
        process = Process(name, f"{first._key} | {second._key or 'broadcast'}", function, emits=emits)
        node = first._pipeline._add(process, first._use(), second._use())
        return ProcessedStream(first._pipeline, node, cast("type[T]", gives))
