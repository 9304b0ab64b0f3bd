"""Pipelines, and the streams that they are built with. Every operator method returns the next stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import msgspec

from headrace.api.changelog import ChangelogMode
from headrace.api.column_reads import Declared, declared_reads
from headrace.api.functions import (
    AsyncFunction,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    TimeDomain,
    function_types,
    is_blocking,
)
from headrace.api.graph import (
    SYMBOLS,
    Additions,
    AssignEventTime,
    AsyncWait,
    DropUpdateBefore,
    Emit,
    Filter,
    FlatMap,
    Input,
    Keep,
    KeyBy,
    Map,
    OnConflict,
    Operator,
    OperatorFunction,
    OutputMode,
    Process,
    SideOutput,
    SinkNode,
    SourceNode,
    SparkTransform,
    Union,
    UpsertMaterialize,
    name_of,
)
from headrace.api.options import (
    History,
    JoinType,
    Late,
    NullKeys,
    Ranks,
    Trigger,
    WindowFunction,
    Windows,
    matched,
    unmatched,
)
from headrace.api.records import RowKind
from headrace.api.services import (
    AsyncRetryStrategy,
    Batching,
    CircuitBreaker,
    LookupCache,
    LookupFunction,
    NoRetry,
    OnFailure,
    RecoveryOption,
    check_limits,
)
from headrace.api.ttl import AnyTtl, Lifetime, StateTtl
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
from headrace.options import LONGEST, Strategy
from headrace.stream.aggregation import (
    WindowedBase,
    aggregate_function,
    window_aggregate_function,
    window_join_function,
    window_match_function,
    window_top_function,
)
from headrace.stream.base import Fields, StreamBase, check_time, fields_of, fields_or_none
from headrace.stream.changelog import (
    applied_changes,
    has_primary_key,
    keeper_of,
    lacks_upsert_key,
    lag_of,
    materializer_of,
    normalization,
    snapshot_functions,
)
from headrace.stream.joins import as_of_join_function, join_function, lookup_of, match_function
from headrace.stream.over import over_function
from headrace.stream.pipeline import PipelineGraph
from headrace.stream.ranking import first_by_time_function, last_by_time_function, top_function

if TYPE_CHECKING:
    from headrace.api.states import AggregateFunction
    from headrace.operators._aggregates import Aggregate
    from headrace.operators._row_functions import RowFunction

    Aggregation = Aggregate | AggregateFunction[Any, Any, Any]

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class Stream(StreamBase[R]):
    """Records of one type on their way through a pipeline.

    A stream may be used any number of times: each use gets all records. A method sends them to an operator and returns
    the operator's output; `sink` ends it and returns the pipeline. `key_by` returns the same records, keyed: only
    `process`, `aggregate`, `window`, joins, `top`, `over`, `first_by_time`, `last_by_time`, `connect` and
    `async_wait(mode=KEYED_ORDERED)` may follow it.
    """

    _pipeline: Pipeline

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
            "sql()", record, lambda takes, gives, names: SparkTransform(takes, gives, query, None, names), tables
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
            "spark()", record, lambda takes, gives, names: SparkTransform(takes, gives, None, function, names), tables
        )

    # ------------------------------------------------------------------------------------------------ stateless

    def map(
        self,
        function: Callable[[R], S],
        /,
        *,
        record: type[S] | None = None,
        keeps: Collection[str] = (),
        reads: Declared | None = None,
    ) -> Stream[S]:
        """Emit one record for each record: `function(record)`.

        `record` is the type of the result; by default the function's annotation names it. The function is plain, and
        depends on its argument alone: it may be called again for the same record. Order, event time and row kind stay.
        `keeps` are fields that a result has with the values of its record, so that keys stay known; a result with
        another value fails the run. `reads` tells `headrace lineage` what the function reads: fields, or fields of the result with
        those that each comes from, as in `reads={"total": ("amount", "rate")}`. By default it may read all fields.

        Raises `TypeError` for a coroutine or a generator function, and without a type; `ValueError` for a field of
        `keeps` or `reads` that the types lack, and for a stream of upserts whose key is not in `keeps`.
        """
        check_plain("map", function)
        self._check_argument("map", function)
        output = returned_type("map", function) if record is None else record
        check_record(f"map({name_of(function)})", output)
        declared = declared_reads(f"map({name_of(function)})", reads, [self._record], output)
        return self._then(Map(function, output, self._kept_fields(keeps, output), declared), output)

    def filter(self, predicate: Callable[[R], object], /, *, reads: Collection[str] | None = None) -> Stream[R]:
        """Emit the records for which `predicate(record)` is true. The predicate has the rules of `map`'s function.

        In a changelog each row is looked at by itself. Of an update whose new row is refused, the `-U` of the old row is
        left, which `upsert_materialize`, aggregates and joins take back. In a stream of upserts, which has no `-U`, a
        refused row becomes a `-D` of its key, and each `-D` is emitted. `reads` are the fields that the predicate reads, as for `map`.

        Raises `TypeError` for a coroutine or a generator function, `ValueError` for a field of `reads` that the record lacks.
        """
        check_plain("filter", predicate)
        self._check_argument("filter", predicate)
        declared = declared_reads(f"filter({name_of(predicate)})", reads, [self._record])
        return self._then(Filter(predicate, self._changes.mode.is_upsert, declared), self._record)

    def flat_map(
        self,
        function: Callable[[R], Iterable[S]],
        /,
        *,
        record: type[S],
        keeps: Collection[str] = (),
        reads: Declared | None = None,
    ) -> Stream[S]:
        """Emit the records of type `record` that `function(record)` returns or yields, in their order: none, one or many.

        The function has the rules of `map`'s, but may be a generator; `keeps` and `reads` are as for `map`.

        Raises `TypeError` for a coroutine function; `ValueError` for a field of `keeps` or `reads` that the types lack, and
        for a stream of upserts.
        """
        check_callable("flat_map", function)
        self._check_argument("flat_map", function)
        check_record(f"flat_map({name_of(function)})", record)
        declared = declared_reads(f"flat_map({name_of(function)})", reads, [self._record], record)
        return self._then(FlatMap(function, record, self._kept_fields(keeps, record), declared), record)

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

    def additions(self) -> Stream[R]:
        """Read inserts and updates as new rows, and drop what takes rows back (row kinds -U and -D): the result is inserts alone.

        It is for operators that take only additions, such as interval joins, behind a feed of changes: each version of a row is a row of
        its own then, and stays when the row is updated or deleted.
        """
        return self._then(Additions(), self._record)

    def normalize(
        self,
        name: str,
        /,
        *,
        key: Fields = (),
        state_ttl: AnyTtl = Lifetime.FOREVER,
        drops_unmatched: bool = False,
    ) -> OperatorStream[R]:
        """Make whole updates of a stream of upserts: `-U` with the last row of the key before each `+U`, `-D` with the last row.

        `key` are the fields that identify a row; by default the stream's own key, where it has one. So aggregates, windows
        and joins can follow. An equal row emits nothing. A `-D` needs only the fields of the key, if nothing but
        `normalize` reads the source; a retraction of a key without a row goes to the quarantine, and is counted, unless it
        `drops_unmatched` ones: a compacted topic has tombstones of keys whose rows it has no more. Rows of sources with `row_kind` may lack their `-U`, and rows of others may come again with other values.

        `state_ttl` bounds the state: a duration or `StateTtl` after which a key without rows is forgotten. Nothing is
        emitted then, and the next row of the key is an insert: operators behind it count it beside the forgotten one.

        Raises `ValueError` without a key, for a field that the record lacks, for a key other than that of the upserts,
        and behind an operator that may change the order of a key's rows.
        """
        fields, function = normalization(
            self, name, key=fields_of(key), state_ttl=state_ttl, drops_unmatched=drops_unmatched
        )
        return self._keyed(KeyBy(fields))._operated(name, function, self._record)

    def apply_changes(
        self,
        name: str,
        /,
        *,
        key: Fields,
        sequence_by: str | tuple[str, ...],
        deletes: Callable[[R], object] | tuple[str, Any] | None = None,
        truncates: Callable[[R], object] | tuple[str, Any] | None = None,
        history: History = History.SCD1,
        record: type[S] | None = None,
        track: tuple[str, ...] = (),
        ignore_nulls: bool = False,
        tombstones: timedelta | Lifetime | None = None,
        corrections: timedelta | Lifetime | None = None,
    ) -> OperatorStream[S]:
        """Make a table of a feed of changes whose events may come in any order (AUTO CDC and APPLY CHANGES of Databricks).

        `sequence_by` orders the events of a `key`: a field, or several. The table is that of all events in this order, whatever the
        order of their arrival. An event sets the row of its key; it deletes the row if `deletes` says so: a plain function of the
        event, or a field and its value, `("op", "d")`. In a stream of upserts a `-D` deletes. An event that `truncates`, given in the same way, empties the table:
        it takes back the rows of all keys that are before it in the sequence, whatever its own key is, and visits all keys for that. An event that equals another one of its sequence is dropped. One that does not equal it, or whose sequence is null, goes to the
        quarantine.

        With `History.SCD1` the table has the current row of each key. With `History.SCD2` it has all versions, each with the part of
        the sequence in which it was valid: `record` then has the fields `valid_from` and `valid_to` (None: it still is), or fields
        marked by `ValidFrom()` and `ValidTo()`. `record` is the type of the rows, which take its other fields from the event; by
        default all of them. A change of the fields `track` opens a version; a change of others updates the version in its place. By
        default all fields of `record` do but the key and the sequence. With `ignore_nulls`, a null keeps the value before it.

        `tombstones` is the length of event time after which a deleted key is forgotten: an older event then makes a new row.
        `corrections` is that after which an event is final: one that has to come before it is late, and is dropped, or goes
        to the side output `late`. Both may be `Lifetime.FOREVER`. `tombstones` is needed where there are deletions, `corrections` with
        `History.SCD2` or `ignore_nulls`.

        Changes come as `-U` with the whole old row and `+U`. A version has the event time of the event that opened it.

        Raises `ValueError` for a field that a record lacks, a length that is missing or has no effect, `deletes` for rows with kinds,
        a stream that retracts rows, and upserts of another key; `TypeError` for a sequence that has no order, a field of `record` that nothing defines, and values of
        another type.
        """
        function, empties = applied_changes(
            self,
            name,
            record,
            key=fields_of(key),
            sequence_by=sequence_by,
            deletes=deletes,
            truncates=truncates,
            history=history,
            track=track,
            ignore_nulls=ignore_nulls,
            tombstones=tombstones,
            corrections=corrections,
        )
        gives = cast("type[S]", self._record) if record is None else record
        if empties is None:
            return self._keyed(KeyBy(fields_of(key)))._operated(name, function, gives)
        reads = truncates[:1] if isinstance(truncates, tuple) else None
        rows = self.filter(lambda event: not empties(event), reads=reads)._keyed(KeyBy(fields_of(key)))
        return rows._operated(name, function, gives, self.filter(empties, reads=reads).broadcast())

    def snapshot_changes(self, name: str, /, *, key: Fields, time: str, every: timedelta) -> Stream[R]:
        """Make events of full extracts of a table: each row is an update, and a key that an extract lacks is a deletion.

        All rows of an extract have the same event time, in the field `time`. The extract is complete when the watermark reaches it;
        a row that comes later goes to the quarantine. An extract without rows is none: a day that is missing deletes nothing. A key that
        the next extract lacks is a `-D` with its last row and the time of that extract. It is found when the watermark passes the next of the times
        that lie `every` apart: give the step of the extracts. The result is a stream of upserts of the `key`; put
        `apply_changes(..., sequence_by=time)` behind it for a table, or for versions.

        It makes a second operator, `NAME_announced`, which tells all keys which extracts there are.

        Raises `ValueError` for a field that the record lacks, a step below 1 ms, and a stream that may retract records; `TypeError`
        unless `time` is a `Timestamp`.
        """
        fields = fields_of(key)
        announced, function = snapshot_functions(self, name, key=fields, time=time, every=every)
        snapshots = self.key_by(time).process(f"{name}_announced", announced)
        emits = ChangelogMode.upsert(*fields)
        return self.key_by(*fields).connect(snapshots.broadcast()).process(name, function, emits=emits)

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

    def key_by(self, key: str | Callable[[R], Any], /, *more: str, reads: Collection[str] | None = None) -> Stream[R]:
        """Key the stream by a field, by several, or by a function of the record.

        A record whose key is null goes to the quarantine, unless an outer join keeps it (`NullKeys`).

        A key is text, a whole number, a float, a truth value, or a tuple of them. Several fields make a tuple; a null
        field makes the key null. A function is plain, and depends on its argument alone. Annotate its return type: the
        key gets this type, so that 0 of a declared float is 0.0, and joins compare the types of the keys. `reads` are the
        fields that it reads, as for `map`.

        Raises `ValueError` for a field that the record lacks, or that holds a list, a map or a record, for fields
        after a function, and for `reads` without a function.
        """
        if not isinstance(key, str):
            check_plain("key_by", key)
            if more:
                msg = (
                    f"key_by({name_of(key)}) takes no fields after a function: let the function return them in a tuple"
                )
                raise ValueError(msg)
            self._check_argument("key_by", key)
            declared = declared_reads(f"key_by({name_of(key)})", reads, [self._record])
            return self._keyed(KeyBy(function=key, reads=declared))
        if reads is not None:
            msg = f"key_by({key!r}): reads tells what a function reads, and a field is no function: leave it out"
            raise ValueError(msg)
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
        self,
        name: str,
        function: KeyedProcessFunction[Any, S],
        /,
        *,
        emits: ChangelogMode | None = None,
        reads: Declared | None = None,
    ) -> ProcessedStream[S]:
        """Run a keyed process function; needs `key_by` before it.

        `process` and `on_timer` must both be `async def`, or both plain `def`. `name` is stored with the function's
        state. `emits` declares what the function's changes mean: `ChangelogMode.INSERT`, `ChangelogMode.RETRACT` or
        `ChangelogMode.upsert("id")`. None: they may retract rows, and no key is known; an operator that takes only
        inserts fails the run at the first `-U` or `-D`. The run also fails where the function emits a row kind that it does not
        declare. `reads` tells `headrace lineage` what the results read, as for `map`: also what only decides whether there is one.

        Raises `ValueError` for a stream that is not keyed, and a field of `reads` that the types lack; `TypeError` for methods of different kinds, and for a
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
        declared = declared_reads(f"process '{name}'", reads, [takes], gives)
        node = self._pipeline._add(Process(name, str(self._key), function, emits=emits, reads=declared), self._use())
        return ProcessedStream(self._pipeline, node, gives)

    def window(self, windows: Windows, /, *, time: TimeDomain = TimeDomain.EVENT_TIME) -> WindowedStream[R]:
        """Group the records of each key by windows (from `headrace.operators`); `aggregate`, `top` or a join must follow.

        `time` is the clock of the windows. By `TimeDomain.PROCESSING_TIME`, a record is in the windows of its
        micro-batch's time, a window fires with the first micro-batch at or after its end, and no record is late.

        Raises `ValueError` for a stream that is not keyed, `TypeError` for other windows, and a `time` that is no `TimeDomain`.
        """
        if self._key is None:
            msg = f"window() of '{self._origin}' needs a key: call key_by() before it"
            raise ValueError(msg)
        check_function("window()", windows, Windows)
        check_time("window()", time)
        return WindowedStream(self, windows, time)

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
        reads: Declared | None = None,
    ) -> Stream[S]:
        """Call `function` for each record, at most `capacity` calls at once per task (elements between attempts included).

        `timeout` covers all attempts of one record, from the time it is accepted. None: there is no limit, and a call
        that never ends lasts until the end of the run, run after run. `mode` is the order of the results;
        within a micro-batch operators downstream see arrival order in every mode. `KEYED_ORDERED` needs `key_by` before
        it.

        `park_after`: an element whose next attempt is at least this far off does not wait in the task but in the table
        `async_requests`, and the first micro-batch after it is due resumes it. None: it always waits in the task.
        `recovery` says how much of its timeout is left then. `on_failure` says what happens to an element that fails
        for good. `service` names the service in the job's file whose `rate` and `concurrency` this operator shares with
        others. `reads` tells `headrace lineage` what the results read of the record, as for `map`.

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
            reads=declared_reads(f"async_wait '{name}'", reads, [takes], gives),
            key=self._key,
            upsert_key=self._changes.mode.key,
            takes_inserts_alone=not self._changes.is_known and not function.deterministic,
        )
        return Stream(self._pipeline, self._pipeline._add(wait, self._use()), gives)

    def sink(self, name: str, /, *, key: Fields | None = None) -> Pipeline:
        """End the stream in the sink `name`, and return the pipeline.

        `key` is the field, or the fields, that tell the rows of the sink's table apart: the table has one row for each key. It stands for
        `upsert_materialize` with this primary key and without further options, as the operator `NAME_rows`; it is also the key of a
        stream of upserts that declares none. It may be left out behind operators that have a primary key.

        Raises `ValueError` for a stream that is keyed, or a broadcast; for a field of `key` that the record lacks, and for another
        key than that of a stream of upserts.
        """
        self._check_free(f"sink '{name}'")
        fields = fields_or_none(key)
        if fields is not None and not has_primary_key(self, fields):
            upsert_key = fields if lacks_upsert_key(self) else None
            return self.upsert_materialize(f"{name}_rows", primary_key=fields, upsert_key=upsert_key).sink(name)
        self._pipeline._add(SinkNode(name), self._use())
        return self._pipeline

    # --------------------------------------------------------------------------------------------- changelogs

    def upsert_materialize(
        self,
        name: str,
        /,
        *,
        primary_key: Fields,
        upsert_key: Fields | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        emit: Emit = Emit.NET_CHANGE,
        ttl: StateTtl | None = None,
        on_conflict: OnConflict = OnConflict.KEEP_HISTORY,
        force: bool = False,
    ) -> Stream[R]:
        """Reconcile a changelog whose rows may come out of order, by primary key (FLIP-544).

        `strategy` is the layout of a key's history; the job's file may choose another one, and the history stays. `ttl`
        is the time after its insertion at which a row expires; nothing is emitted then. `on_conflict` says what happens
        to a second row of a key (FLIP-558). Where the upsert key is the primary key no history is kept, unless `force`: the last change
        of a key counts, and a retraction deletes the key. Without `upsert_key` it is taken from the graph: the key of a stream of
        upserts, or the primary key where it is a unique key of the stream, as behind `aggregate`, or where the stream has inserts
        alone; but not with a `ttl`, a policy for conflicts, or `Emit.EVERY_CHANGE`. Else rows are found as a whole.

        Raises `ValueError` without a primary key, for a field that the record lacks, and for a `ttl` that is renewed by
        reading, shows expired rows, is prolonged by pauses, or expires rows inserted in event time by processing time.
        """
        materializer = materializer_of(
            self,
            name,
            primary_key=fields_of(primary_key),
            upsert_key=fields_or_none(upsert_key),
            strategy=strategy,
            emit=emit,
            ttl=ttl,
            on_conflict=on_conflict,
            force=force,
        )
        return self._materialized(materializer, self._record)

    def first_value(
        self,
        name: str,
        /,
        *,
        key: Fields,
        upsert_key: Fields | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
        """Keep the first row of each key. When it is retracted, the row after it takes its place.

        Arguments and errors are as for `upsert_materialize`; the sink is merged by `key`.
        """
        keeper = keeper_of(
            self,
            name,
            Keep.FIRST,
            key=fields_of(key),
            upsert_key=fields_or_none(upsert_key),
            strategy=strategy,
            ttl=ttl,
        )
        return self._materialized(keeper, self._record)

    def last_value(
        self,
        name: str,
        /,
        *,
        key: Fields,
        upsert_key: Fields | None = None,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
        """Keep the last row of each key. When it is retracted, the row before it takes its place.

        Arguments and errors are as for `upsert_materialize`; the sink is merged by `key`.
        """
        keeper = keeper_of(
            self, name, Keep.LAST, key=fields_of(key), upsert_key=fields_or_none(upsert_key), strategy=strategy, ttl=ttl
        )
        return self._materialized(keeper, self._record)

    def deduplicate(
        self,
        name: str,
        /,
        *,
        key: Fields,
        keep: Keep = Keep.FIRST,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
    ) -> Stream[R]:
        """Keep one row of each key, however many arrive, as long as one of them is not retracted.

        All rows are stored, for each may be retracted. On a stream of inserts, `first_by_time` and `last_by_time` store one.

        With a `ttl`, a key counts as new again when this time has passed since its row. Arguments and errors
        are as for `upsert_materialize`.
        """
        keeper = keeper_of(self, name, keep, key=fields_of(key), upsert_key=None, strategy=strategy, ttl=ttl)
        return self._materialized(keeper, self._record)

    def lag(
        self,
        name: str,
        function: Callable[[Any, Any], S],
        /,
        *,
        record: type[S],
        partition_by: tuple[str, ...],
        primary_key: Fields,
        upsert_key: Fields | None = None,
        offset: int = 1,
        strategy: Strategy = Strategy.ADAPTIVE,
        ttl: StateTtl | None = None,
        reads: Declared | None = None,
    ) -> Stream[S]:
        """Make a `record` of each row and the row `offset` places before it in its partition, or None.

        `function(row, before)` is called for each row that arrives, and again for the rows after a row that is replaced
        or retracted. It must depend on its arguments alone. Rows are in order of arrival within `partition_by`, and
        identified by `upsert_key` or as a whole; the sink is merged by the `primary_key` of `record`, which must
        distinguish all rows.

        `ttl` is the time after its insertion at which a row expires; nothing is emitted then. Results that were made of
        the row stay in the sink, and later results are made without it. `reads` are fields of both rows, as for `map`.

        Raises `ValueError` for an `offset` below 1, an empty key, a field that the record lacks, and a `ttl` that rows
        of a history cannot have (see `upsert_materialize`).
        """
        lagging = lag_of(
            self,
            name,
            function,
            record=record,
            partition_by=partition_by,
            primary_key=fields_of(primary_key),
            upsert_key=fields_or_none(upsert_key),
            offset=offset,
            strategy=strategy,
            ttl=ttl,
            reads=reads,
        )
        return self._materialized(lagging, record)

    # ------------------------------------------------------------------------------- aggregates, joins, ranks

    @overload
    def aggregate(
        self,
        name: str,
        result: type[S],
        /,
        *,
        emit: Emit = ...,
        retract: bool = ...,
        retracting: bool | None = ...,
        state_ttl: AnyTtl | None = ...,
    ) -> OperatorStream[S]: ...

    @overload
    def aggregate(
        self,
        name: str,
        /,
        *,
        emit: Emit = ...,
        retract: bool = ...,
        retracting: bool | None = ...,
        state_ttl: AnyTtl | None = ...,
        **aggregates: Aggregation,
    ) -> OperatorStream[Any]: ...

    def aggregate(
        self,
        name: str,
        result: type[Any] | None = None,
        /,
        *,
        emit: Emit = Emit.EVERY_CHANGE,
        retract: bool = True,
        retracting: bool | None = None,
        state_ttl: AnyTtl | None = None,
        **aggregates: Aggregation,
    ) -> OperatorStream[Any]:
        """Aggregate all records of each key, and emit each change of the result (SQL: `GROUP BY`); needs `key_by` before it.

        `result` is a record type. Its annotations define each field:

            class Spent(Struct, frozen=True):
                customer: str                          # a field of key_by
                orders: Annotated[int, Count()]        # an aggregate of headrace.operators, or an AggregateFunction
                cents: Annotated[int, Sum("cents")]

        Every field may be left out. After a `key_by` with a function, the field `key` holds the key. Without a type, each aggregate is given
        by the name of its field, as in `aggregate("spent", orders=Count(), cents=Sum("cents"), state_ttl=...)`: the result then
        has the key and these fields, a sum of decimals has 38 digits. The first result of
        a key is an insert (`+I`). Later ones replace it: `-U` with the old result and its event time, then `+U` with the
        new one and the event time of the record. A record that changes nothing emits nothing. When all records of a key
        are retracted, its result is deleted (`-D`). A retraction of a key without records, or one that some aggregate
        knows it never took, changes nothing and goes to the quarantine.

        `emit=Emit.NET_CHANGE` emits one change for each key and micro-batch, from the last result before it to the one
        at its end (Flink: mini-batch aggregation). State and tables are the same, but a log of the results is shorter,
        and depends on the micro-batches. `retract=False` leaves `-U` out, for a sink that is merged by the key, or
        for a log of results; other operators would count each result again.

        `retracting` says whether the stream has `-U` and `-D`; None: taken from the graph, which does not know what your
        own process functions emit. `state_ttl` bounds the state: a duration or `StateTtl` after which a key without
        records is forgotten (nothing is emitted then), or `Lifetime.FOREVER`.

        Raises `ValueError` without a key or `state_ttl`, for `Emit.NET_CHANGE` with a TTL, for a field that the record
        lacks, and for a stream that retracts records where an aggregate cannot; `TypeError` for a field whose
        annotation does not define it, or has another type than its aggregate gives.
        """
        function, gives = aggregate_function(
            self, name, result, aggregates, emit=emit, retract=retract, retracting=retracting, state_ttl=state_ttl
        )
        return self._operated(name, function, gives)

    def join(
        self,
        name: str,
        other: Stream[S],
        /,
        *,
        emit: Callable[..., T],
        record: type[T] | None = None,
        how: JoinType = JoinType.INNER,
        within: tuple[timedelta, timedelta] | None = None,
        on: Callable[[R, S], object] | None = None,
        time: TimeDomain = TimeDomain.EVENT_TIME,
        state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None = None,
        null_keys: NullKeys = NullKeys.KEEP,
        reads: Declared | None = None,
    ) -> OperatorStream[T]:
        """Join the records of two keyed streams whose keys are equal, and for which `on(left, right)` is true; this stream is the left side.

        `emit(left, right)` makes the result of a pair. It is a plain function, or a record type of two fields; its
        annotation, or `record`, names the type of its result. It must depend on its arguments alone: it is called again
        to retract a result. `reads` are the fields that it reads, of the sides that have them, as for `map`.

        `how` says whether records without a match are in the result; `emit` then gets None for the side that is
        missing. A record of such a side whose key is null matches nothing and is in the result, as in SQL;
        `null_keys=NullKeys.QUARANTINE` sends it to the quarantine, as all other records with a null key.

        **With `within`**, an interval join: `other.time - this.time` lies from `low` to `high`, both included. Both
        sides only add records, and so does the result. A record without a match is emitted once the watermark has
        passed its interval. The watermark frees the state. A record behind the watermark is dropped, or goes to the
        side output `late_left` or `late_right`, if you declare it: `.side("late_left", Order)`. By
        `time=TimeDomain.PROCESSING_TIME`, the times are those of the records' micro-batches, and no record is late.

        **Without it**, a regular join: every record of one side with every record of the other, for as long as both are
        kept. Sides may retract records, and the result then does, too. A side may have upserts of a key that holds all join
        fields. A side with updates has one stored row for each unique key that the graph knows. `state_ttl` bounds the state:
        a duration or `StateTtl` after which a record expires, `Lifetime.FOREVER`, or two of them, for left and right.

        Raises `ValueError` for a stream that is not keyed or belongs to another pipeline, a regular join without
        `state_ttl`, and an interval join with `state_ttl`, or of a stream that may retract records; for upserts whose key lacks a
        join field; `TypeError` where the keys' types differ, and for an `emit` that does not fit.
        """
        function, gives = join_function(
            self,
            name,
            other,
            emit=emit,
            record=record,
            how=how,
            within=within,
            on=on,
            time=time,
            state_ttl=state_ttl,
            null_keys=null_keys,
            reads=reads,
        )
        return self._operated(name, function, gives, other)

    def semi_join(
        self,
        name: str,
        other: Stream[S],
        /,
        *,
        on: Callable[[R, S], object] | None = None,
        state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None = None,
    ) -> OperatorStream[R]:
        """Keep the records whose key has a record of `other`, for which `on(left, right)` is true: `IN` and `EXISTS` of SQL.

        Each record is emitted once, however many match, as soon as the first one is there; it is taken back (`-D`) when the last one is
        retracted. Lifetimes, upserts, null keys of `other` and errors are as for `join`; a record with a null key goes to the quarantine.
        """
        function = match_function(self, f"semi_join '{name}'", other, is_anti=False, on=on, state_ttl=state_ttl)
        return self._operated(name, function, self._record, other)

    def anti_join(
        self,
        name: str,
        other: Stream[S],
        /,
        *,
        on: Callable[[R, S], object] | None = None,
        state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None = None,
        null_keys: NullKeys = NullKeys.KEEP,
    ) -> OperatorStream[R]:
        """Keep the records whose key has no record of `other`, for which `on(left, right)` is true: `NOT EXISTS` of SQL.

        A record is emitted at once, taken back (`-D`) when one of `other` matches it, and emitted again when the last match is
        retracted. A record with a null key has no match, so it is kept; `null_keys=NullKeys.QUARANTINE` sends it to the quarantine.
        Lifetimes, upserts and errors are as for `join`. To wait for a match, and emit a record once that is not possible any more, join with
        `within` and `JoinType.LEFT`.
        """
        function = match_function(
            self, f"anti_join '{name}'", other, is_anti=True, on=on, state_ttl=state_ttl, null_keys=null_keys
        )
        return self._operated(name, function, self._record, other)

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        result: None = ...,
        retracting: bool | None = ...,
        state_ttl: AnyTtl | None = ...,
    ) -> OperatorStream[R]: ...

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        result: type[S],
        retracting: bool | None = ...,
        state_ttl: AnyTtl | None = ...,
    ) -> OperatorStream[S]: ...

    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = True,
        result: type[Any] | None = None,
        retracting: bool | None = None,
        state_ttl: AnyTtl | None = None,
    ) -> OperatorStream[Any]:
        """Keep the first `n` records of each key by `by`, and emit each change of them; needs `key_by` before it.

        `by` is a field or a plain function of the record. Its value is text, a number, a truth value, a day, bytes, or a
        tuple of them. The largest comes first, or with `descending=False` the smallest; None is smaller than any value. Of
        records with equal values, the earliest by event time comes first, and of those the first to arrive. `result` is
        the type of the emitted records: it takes fields of the record by their names, and the rank in a field annotated
        with `Rank()`.

            class Best(Struct, frozen=True):
                game: str
                player: str
                rank: Annotated[int, Rank()]           # 1 for the first

        With a rank, each rank whose record changes is updated (`-U`, `+U`). Without `result`, or without a rank in it,
        the records are emitted, and those that leave the first `n` are deleted (`-D`). An emitted row has the event
        time of its record, also when it is retracted.

        `retracting` says whether the stream has `-U` and `-D`. If so, all records of a key are stored, and a retraction
        of a record that is not stored goes to the side output `unmatched`, or else to the quarantine. None: taken from the graph, which does not
        know what your own process functions emit. A record of a stream of upserts replaces the row with its unique key, and `-D` needs that key
        alone. `state_ttl` bounds the state: a duration or `StateTtl` after which an
        entry without a write expires (nothing is emitted then), or `Lifetime.FOREVER`.

        Raises `ValueError` without a key or `state_ttl`, for `n` below 1, for a field that the record lacks, and for upserts that are not
        keyed by fields of their unique key;
        `TypeError` for values that cannot be compared, and for a `result` with a field that is neither a field of the
        record nor a rank.
        """
        ranks = partial(Ranks, n, by, descending, result)
        function = top_function(self, name, ranks, result, retracting=retracting, state_ttl=state_ttl)
        return self._operated(name, function, result or self._record)

    @overload
    def over(
        self,
        name: str,
        result: type[S],
        /,
        *,
        order_by: str | tuple[str, ...] = ...,
        rows: int | None = ...,
        within: timedelta | None = ...,
        late: Late = ...,
        keep: timedelta | None = ...,
        state_ttl: AnyTtl | None = ...,
    ) -> OperatorStream[S]: ...

    @overload
    def over(
        self,
        name: str,
        /,
        *,
        order_by: str | tuple[str, ...] = ...,
        rows: int | None = ...,
        within: timedelta | None = ...,
        late: Late = ...,
        keep: timedelta | None = ...,
        state_ttl: AnyTtl | None = ...,
        **functions: Aggregation | RowFunction,
    ) -> OperatorStream[Any]: ...

    def over(
        self,
        name: str,
        result: type[Any] | None = None,
        /,
        *,
        order_by: str | tuple[str, ...] = (),
        rows: int | None = None,
        within: timedelta | None = None,
        late: Late = Late.DROP,
        keep: timedelta | None = None,
        state_ttl: AnyTtl | None = None,
        **functions: Aggregation | RowFunction,
    ) -> OperatorStream[Any]:
        """Emit one `result` for each record of a key, from the rows before it (SQL: `OVER`); needs `key_by` before it.

        Rows of a key are in the order of event time (whole milliseconds), then of the fields `order_by`, then of arrival. The
        annotations of `result` define each field:

            class Recent(Struct, frozen=True):
                card: str                                       # a field of the record
                at: Timestamp
                payments: Annotated[int, Count()]               # an aggregate over the frame
                before: Annotated[int | None, Lag("cents")]     # a function of the row's place

        Without a type, each aggregate or function is given by the name of its field, as in `over("recent", payments=Count(),
        within=...)`: the result then has the fields of the record and these.

        The frame is one of three. `rows=3`: the row and the two before it (SQL: `ROWS BETWEEN 2 PRECEDING AND CURRENT
        ROW`). `within=timedelta(minutes=10)`: the rows at most ten minutes before it by event time, both ends included;
        rows of equal event time see one another (`RANGE BETWEEN INTERVAL '10' MINUTE PRECEDING AND CURRENT ROW`). Neither:
        all rows so far, and those of equal event time and equal `order_by` (`RANGE UNBOUNDED PRECEDING`).

        A result is emitted when the watermark reaches its row, with the row's event time; with `Lead`, when it reaches
        the last row that the result needs. A record that arrives later is dropped, or goes to the side output `late`.
        With `late=Late.CORRECT` and `keep`, a record that is less than `keep` behind the watermark takes its place instead, and
        each result that changes is emitted again (`-U`, `+U`).

        The watermark frees the state of `within`. What is kept of each key else, the last rows, sums and numbers, needs
        `state_ttl`: a duration or `StateTtl` after which a key without rows begins anew, or `Lifetime.FOREVER`.

        Raises `ValueError` without a key, for `rows` and `within` together, for `rows` below 1, for `keep` without
        `Late.CORRECT` and the reverse, without a `state_ttl` that is needed, with one that is not, for a field that the record
        lacks, and for a stream that may retract records: call `additions` before it. Raises `TypeError` for a field whose
        annotation does not define it, or has another type than its definition gives.
        """
        function, gives = over_function(
            self,
            name,
            result,
            functions,
            order_by=order_by,
            rows=rows,
            within=within,
            late=late,
            keep=keep,
            state_ttl=state_ttl,
        )
        return self._operated(name, function, gives)

    def first_by_time(
        self,
        name: str,
        /,
        *,
        at_watermark: bool = False,
        time: TimeDomain = TimeDomain.EVENT_TIME,
        state_ttl: AnyTtl | None = None,
    ) -> OperatorStream[R]:
        """Keep the first record of each key by event time; needs `key_by` before it. Of one timestamp, the first to arrive stays.

        It is emitted at once (`+I`); an earlier one that arrives later replaces it (`-U`, `+U`). With `at_watermark` it
        is emitted when the watermark reaches its event time, as a final insert; records that arrive behind the
        watermark are dropped. `state_ttl` bounds the state: a key counts as new again when this time (a duration or
        `StateTtl`) has passed since its row was written, or never (`Lifetime.FOREVER`).

        By `time=TimeDomain.PROCESSING_TIME`, the first record to arrive stays, as an insert, and a duration as `state_ttl`
        counts processing time.

        Raises `ValueError` without a key or `state_ttl`, for `at_watermark` by processing time, and for a stream that may retract records: use `top` with
        `n=1` there.
        """
        function = first_by_time_function(self, name, at_watermark=at_watermark, time=time, state_ttl=state_ttl)
        return self._operated(name, function, self._record)

    def last_by_time(
        self, name: str, /, *, time: TimeDomain = TimeDomain.EVENT_TIME, state_ttl: AnyTtl | None = None
    ) -> OperatorStream[R]:
        """Keep the last record of each key by event time; needs `key_by` before it. Of one timestamp, the last to arrive stays.

        It is emitted at once; each later one replaces it (`-U`, `+U`). By `time=TimeDomain.PROCESSING_TIME`, the last to
        arrive stays. `state_ttl` and errors are as for `first_by_time`.
        """
        return self._operated(name, last_by_time_function(self, name, time=time, state_ttl=state_ttl), self._record)

    def join_as_of(
        self,
        name: str,
        versions: Stream[S],
        /,
        *,
        emit: Callable[[R, Any], T],
        how: JoinType = JoinType.INNER,
        record: type[T] | None = None,
        time: TimeDomain = TimeDomain.EVENT_TIME,
        state_ttl: AnyTtl | None = None,
        null_keys: NullKeys = NullKeys.KEEP,
        reads: Declared | None = None,
    ) -> OperatorStream[T]:
        """Join each record with the one of `versions` that is valid at its event time; both are keyed by the same type.

        A record of `versions` is valid from its event time until the next one of its key. A `-D` ends the version
        before it, from its own event time on; a `-U` changes nothing. Of several versions of one timestamp, the last to
        arrive is valid.

        A record waits until the watermark reaches its event time, and is then emitted as `emit(record, version)`, with
        its own event time and row kind. Without a valid version, `JoinType.INNER` emits nothing, `JoinType.LEFT` emits
        `emit(record, None)`, also for a record whose key is null; `null_keys=NullKeys.QUARANTINE` sends that one to the quarantine.
        `emit` is plain; `record` is the type of its result, by default the one in its annotation; `reads` are as for `join`. A late record is dropped, or goes to the side output `late`. A late version holds for the records that still
        wait.

        By `time=TimeDomain.PROCESSING_TIME`, a record is emitted at once, with the latest version of its key that has
        arrived before it. No record is late, and the result does not change when the next version arrives. A stream
        that may retract records is refused.

        A version is freed when the watermark reaches the next one, but is valid for `state_ttl` at most, from its event time on: a
        duration, a `StateTtl` or `Lifetime.FOREVER`. A duration counts the same `time`, by processing time from its arrival on.

        Raises `ValueError` without a key on both sides, for a `how` other than INNER or LEFT, and without `state_ttl`;
        `TypeError` where the keys' types differ, and for an `emit` that does not fit.
        """
        function, gives = as_of_join_function(
            self,
            name,
            versions,
            emit=emit,
            how=how,
            record=record,
            time=time,
            state_ttl=state_ttl,
            null_keys=null_keys,
            reads=reads,
        )
        return self._operated(name, function, gives, versions)

    def lookup(
        self,
        name: str,
        function: LookupFunction[Any, S],
        /,
        *,
        timeout: timedelta | None,
        how: JoinType = JoinType.INNER,
        cache: LookupCache | None = None,
        mode: OutputMode = OutputMode.UNORDERED,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
        park_after: timedelta | None = None,
        on_failure: OnFailure = OnFailure.FAIL,
        breaker: CircuitBreaker | None = None,
        service: str | None = None,
        reads: Declared | None = None,
    ) -> Stream[S]:
        """Join each record with a service's response for its key: `async_wait` with a `LookupFunction` and a cache.

        `JoinType.INNER` emits nothing for a record whose response is negative (None, or anything else that is false), and
        does not call `join` for it; `JoinType.LEFT` calls `join(record, response)` for all. `cache` is by default
        `LookupCache()`: 10,000 responses for each task, for as long as it lives. The other arguments are those of
        `async_wait`.

        Raises `ValueError` for a `how` other than INNER or LEFT, `TypeError` for another kind of function; else as
        `async_wait`.
        """
        return self.async_wait(
            name,
            lookup_of(name, function, how),
            timeout=timeout,
            cache=LookupCache() if cache is None else cache,
            mode=mode,
            capacity=capacity,
            retry=retry,
            park_after=park_after,
            on_failure=on_failure,
            breaker=breaker,
            service=service,
            reads=reads,
        )

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
        step: Callable[[type[R], type[S], tuple[str, ...]], SparkTransform],
        tables: Collection[str],
    ) -> Stream[S]:
        source = cast("SourceNode", self._node.operator)
        is_source = isinstance(self._node.operator, SourceNode)
        if not is_source:
            msg = (
                f"{method} of '{self._origin}': Spark's transform must come first, directly behind source(). Let it make the rows "
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

        The sink stores no row kinds. Late records of a stream with retractions have them: take `side(...).additions()`.

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
        reads: Declared | None = None,
    ) -> ProcessedStream[T]:
        """Run a function of two inputs: `process1` gets the records of the stream on which `connect` was called, `process2` the others.

        After `connect(rules.broadcast())` it is a `KeyedBroadcastFunction`: `process` and `process_broadcast`. Records
        come in the order of their arrival. `emits` and `reads` are as for `Stream.process`. Raises `TypeError` for another kind of function, and for one that takes
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
        declared = declared_reads(taker, reads, takes, gives)
        process = Process(name, f"{first._key} | {second._key or 'broadcast'}", function, emits=emits, reads=declared)
        node = first._pipeline._add(process, first._use(), second._use())
        return ProcessedStream(first._pipeline, node, cast("type[T]", gives))


class WindowedStream(WindowedBase[R]):
    """A keyed stream and its windows: `aggregate`, `top` or a join must follow."""

    _stream: Stream[R]

    def __init__(self, stream: Stream[R], windows: Windows, time: TimeDomain) -> None:
        """Hold the stream, its windows and their clock; `Stream.window` calls this."""
        self._stream = stream
        self._windows = windows
        self._time = time

    @overload
    def aggregate(
        self,
        name: str,
        result: type[S],
        /,
        *,
        allowed_lateness: timedelta = ...,
        early: timedelta | Trigger | None = ...,
    ) -> AggregatedStream[S]: ...

    @overload
    def aggregate(
        self,
        name: str,
        /,
        *,
        allowed_lateness: timedelta = ...,
        early: timedelta | Trigger | None = ...,
        **aggregates: Aggregation,
    ) -> AggregatedStream[Any]: ...

    def aggregate(
        self,
        name: str,
        result: type[Any] | None = None,
        /,
        *,
        allowed_lateness: timedelta = timedelta(0),
        early: timedelta | Trigger | None = None,
        **aggregates: Aggregation,
    ) -> AggregatedStream[Any]:
        """Emit one `result` for each key and window that has records, when the watermark reaches the window's end.

        `result` is a record type. Its annotations define each field:

            class Revenue(Struct, frozen=True):
                customer: str                          # a field of key_by
                window_start: Timestamp                # the first timestamp of the window
                window_end: Timestamp                  # the first timestamp after it
                orders: Annotated[int, Count()]        # an aggregate of headrace.operators, or an AggregateFunction
                cents: Annotated[int, Sum("cents")]

        Every field may be left out. After a `key_by` with a function, the field `key` holds the key. Without a type, each aggregate is given
        by the name of its field, as in `aggregate("revenue", orders=Count(), cents=Sum("cents"))`: the result then has the key,
        `window_start`, `window_end` and these fields. Results have the
        event time `window_end - 1 ms`, and the first one of a window is an insert (`+I`).

        A record that arrives after its window has fired, but before the watermark passes the window's end by
        `allowed_lateness`, corrects the result: `-U` with the old one, `+U` with the new one. A later record is
        dropped, or goes to the side output `late` of the result, if you declare it: `.side("late", Order)` or
        `.side_output("late", Order, sink=...)`. State is freed at the same time.

        `early` is a step of event time, counted from the window's start: when the watermark reaches the end of a step,
        the window emits its result so far, and corrects it after the next step or at its end. If a session has grown
        since its early result, that result is deleted, and a new one inserted; where several sessions merge, their
        early results are deleted at once. `early=every(timedelta(minutes=5))` counts steps of processing time, and
        `early=after_rows(1000)` rows; with `purging=True`, each of their results has only the records since the one before it.

        Raises `TypeError` for a field whose annotation does not define it, or has another type than its aggregate
        gives; `ValueError` for a negative lateness, an early step below 1 ms, a field that the record lacks, a
        stream that retracts records where an aggregate cannot, early results of sessions of such a stream, and for purging
        where records are still needed.
        """
        function, gives = window_aggregate_function(
            self, name, result, aggregates, allowed_lateness=allowed_lateness, early=early
        )
        return self._stream._aggregated(name, function, gives)

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        ties: bool = ...,
        result: None = ...,
        allowed_lateness: timedelta = ...,
        early: timedelta | Trigger | None = ...,
    ) -> AggregatedStream[R]: ...

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        ties: bool = ...,
        result: type[S],
        allowed_lateness: timedelta = ...,
        early: timedelta | Trigger | None = ...,
    ) -> AggregatedStream[S]: ...

    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = True,
        ties: bool = False,
        result: type[Any] | None = None,
        allowed_lateness: timedelta = timedelta(0),
        early: timedelta | Trigger | None = None,
    ) -> AggregatedStream[Any]:
        """Emit the first `n` records of each key and window by `by`, when the watermark reaches the window's end.

        `by`, `descending` and `result` are as for `Stream.top`; the fields `window_start` and `window_end` of `result`
        hold those of the window, unless the record has such fields. Results come in the order of their ranks, with the
        event time `window_end - 1 ms`, as inserts. `allowed_lateness`, `early`, late records and the freeing of state
        are as for `aggregate`; a correction updates each rank whose record changes.

        With `ties`, all records whose value equals that of the n-th one are emitted, too, as by `RANK() <= n` of SQL.
        Records with equal values have the same rank, as in 1, 1, 3. A rank may then have several results, so a
        correction deletes those that are no longer right, and inserts new ones. All these records are stored.

        Raises the errors of `aggregate` and `Stream.top`.
        """
        ranks = partial(Ranks, n, by, descending, result, ties)
        function = window_top_function(self, name, ranks, result, allowed_lateness=allowed_lateness, early=early)
        return self._stream._aggregated(name, function, result or self._stream.record_type())

    def join(
        self,
        name: str,
        other: WindowedStream[T],
        /,
        *,
        emit: Callable[[Any, Any], S],
        how: JoinType = JoinType.INNER,
        record: type[S] | None = None,
        null_keys: NullKeys = NullKeys.KEEP,
        reads: Declared | None = None,
    ) -> OperatorStream[S]:
        """Join the records of two streams that have the same key and lie in the same window.

        When the watermark reaches the window's end, `emit(left, right)` is emitted for each pair, with the event time
        `window_end - 1 ms`, in the order of their slices and of arrival. Where a key has records on one side alone,
        `how` decides: `JoinType.LEFT` and `FULL` emit `emit(left, None)`, `RIGHT` and `FULL` `emit(None, right)`.
        There a record with a null key matches nothing and is in the result; `null_keys=NullKeys.QUARANTINE` sends it to the quarantine.
        `emit` is plain; `record` is the type of its result, by default the one in its annotation; `reads` are the fields that it
        reads, as for `Stream.join`. A `-U` or `-D` removes a record from its windows.

        A record that arrives after its windows have fired is dropped, or goes to the side output `late_left` or
        `late_right`. State is freed when the watermark passes the end of the last window.

        Raises `ValueError` where the other side has other windows, and for sessions; `TypeError` where the keys' types
        differ, and for an `emit` that does not fit.
        """
        function, gives = window_join_function(
            self, name, other, emit=emit, how=how, record=record, null_keys=null_keys, reads=reads
        )
        return self._stream._operated(name, function, gives, other._stream)

    def semi_join(self, name: str, other: WindowedStream[T], /) -> OperatorStream[R]:
        """Keep the records whose key has records of `other` in the same window: `IN` and `EXISTS` of Flink SQL's window joins.

        When the watermark reaches the window's end, each such record is emitted once, however many match, with the event time
        `window_end - 1 ms`; a record that is in several windows, once for each. Late records, state and errors are as for `join`.
        """
        function = window_match_function(self, f"semi_join '{name}'", other, kind="semi", results=matched)
        return self._stream._operated(name, function, self._stream.record_type(), other._stream)

    def anti_join(
        self, name: str, other: WindowedStream[T], /, *, null_keys: NullKeys = NullKeys.KEEP
    ) -> OperatorStream[R]:
        """Keep the records whose key has no record of `other` in the same window: `NOT EXISTS` of Flink SQL's window joins.

        A record with a null key has no match, so it is kept; `null_keys=NullKeys.QUARANTINE` sends it to the quarantine.
        Everything else is as for `semi_join`.
        """
        function = window_match_function(
            self, f"anti_join '{name}'", other, kind="anti", results=unmatched, null_keys=null_keys
        )
        return self._stream._operated(name, function, self._stream.record_type(), other._stream)


class Pipeline(PipelineGraph):
    """Graph of a job: sources give streams, operators make new streams, and sinks end them.

        p = Pipeline("shop")
        orders = p.source("orders", Order, event_time="placed_at")
        orders.filter(is_large).sink("large_orders")
        orders.key_by("customer").process("totals", Totals()).sink("totals")

    `sink` returns the pipeline, so that a line of operators can be written as one expression.

    Names are identifiers (lower case, digits, underscores, at most 63 characters). Names of sources and operators are
    unique within the pipeline; a sink may have the name of the operator before it. An operator's name is stored with
    its state: a renamed operator starts with empty state. Raises `ValueError` for a name that breaks these rules.
    """

    def __repr__(self) -> str:
        """Name the pipeline and its operators."""
        return f"<Pipeline '{self.name}': {', '.join(operator.name for operator in self.operators)}>"

    def source(
        self,
        name: str,
        record: type[R],
        /,
        *,
        event_time: str,
        order_by: tuple[str, ...] = (),
        row_kind: str | Mapping[str, str] | None = None,
        out_of_orderness: timedelta = timedelta(0),
    ) -> Stream[R]:
        """Read `record`s from the source `name`.

        `event_time` is the field with the record's time (`Timestamp`). Arrival order is the source's own (file, row);
        `order_by` sorts the rows of one file instead. `row_kind` is the column with `+I`, `-U`, `+U` or `-D`; without
        one every row is an insert. Where the column has other values, a mapping says what they stand for, and names the column as
        `field`: `row_kind={"field": "op", "c": "+I", "u": "+U", "d": "-D"}`. Integers and truth values are written as text: `"1"`, `"true"`.
        A row with any other value is a bad row. Without a value for `-U` the rows are upserts: `normalize` makes whole updates of them. The watermark stays `out_of_orderness` behind the latest event time. Where streams
        of several sources meet, their records come in the order of event time, each source's own order kept, and the
        watermark is the smallest of theirs.

        Raises `ValueError` unless `out_of_orderness` is from 0 to 36,500 days, for a name that is taken or no identifier, a field that `record` lacks, and
        a mapping without a `field`, or with something else than row kinds; `TypeError` unless `record` is a class derived from `Struct`.
        """
        if not timedelta(0) <= out_of_orderness <= LONGEST:
            msg = f"out_of_orderness of '{name}' must be from 0 to {LONGEST.days:,} days, not {out_of_orderness}"
            raise ValueError(msg)
        check_record(f"source '{name}'", record)
        for column in (event_time, *order_by):
            check_field(record, column)
        kind_column, kinds = _row_kinds(name, row_kind)
        node = self._add(SourceNode(name, record, event_time, order_by, kind_column, out_of_orderness, kinds=kinds))
        return Stream(self, node, record)


def _row_kinds(
    source: str, given: str | Mapping[str, str] | None
) -> tuple[str | None, tuple[tuple[str, RowKind], ...]]:
    """Return the column of a source's row kinds, and what its values stand for. Raises `ValueError` as `Pipeline.source` does."""
    if given is None or isinstance(given, str):
        return given, SYMBOLS
    kinds: dict[Any, Any] = dict(given)
    column, symbols = kinds.pop("field", None), dict(SYMBOLS)
    if not isinstance(column, str) or not kinds:
        msg = (
            f"row_kind of '{source}' needs the column as 'field', and what its values stand for, as in "
            f'{{"field": "op", "c": "+I", "u": "+U", "d": "-D"}}; it is {given!r}'
        )
        raise ValueError(msg)
    for value, symbol in kinds.items():
        if not isinstance(value, str) or symbol not in symbols:
            msg = (
                f"row_kind of '{source}' gives {value!r} the kind {symbol!r}: values are texts ('1' for the integer 1, 'true'), "
                f"kinds are {', '.join(symbols)}"
            )
            raise ValueError(msg)
    return column, tuple((value, symbols[symbol]) for value, symbol in kinds.items())
