"""Harness that drives one keyed process function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from headrace import clock
from headrace.api.functions import (
    BROADCAST_METHOD,
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    function_types,
    input_methods,
    listed_methods,
)
from headrace.api.graph import NULL_KEY, KeyBy, OperatorFunction
from headrace.api.records import RowKind
from headrace.api.types import check_function
from headrace.execution.bound_function import declared_states
from headrace.execution.element import Element, Emitted, ProcessingTime, RecordCodec
from headrace.execution.element import Watermark as ElementWatermark
from headrace.execution.executor import InlineStateExecutor
from headrace.execution.keyed_process import KeyedProcess
from headrace.names import counted
from headrace.options import AsyncStateOptions
from headrace.records.keys import key_reader
from headrace.records.order import processing_time_order, record_order
from headrace.records.watermarks import latest
from headrace.state.backend import TIMER_PREFIX, StateBackend
from headrace.state.broadcast import BROADCAST_KEY, BroadcastStore, broadcast_rows
from headrace.state.cleanup import known_timers
from headrace.state.codec import encode
from headrace.state.store import StateStore
from headrace.state.timers import timer_of
from headrace.state.ttl import TtlHistory
from headrace.testing._output import HarnessClock, HarnessOutput, LateRecord, Watermark
from headrace.testing._shared import (
    BackendName,
    DeferredBackend,
    SteppedExecutor,
    check_backend,
    described_process,
    new_backend,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.testing._committed_tables import CommittedTables


R = TypeVar("R", bound=msgspec.Struct)


class Snapshot(msgspec.Struct, frozen=True):
    """Content of a checkpoint: everything that the function has stored."""

    entries: tuple[tuple[bytes, bytes], ...]
    watermark: int | None
    ordinal: int
    max_parallelism: int
    processing_time: int = 0
    ttl: TtlHistory = TtlHistory()
    latest_event: int | None = None
    """Latest event time of a record (ms)."""


@dataclass(frozen=True, slots=True)
class HarnessStatistics:
    """State of a keyed function at one time, and counts since its start; fields are as in `ControllerStatistics`."""

    in_flight: int
    active: int
    blocking: int
    occupied_keys: int
    epochs: int
    batches: int
    batches_in_flight: int
    requests: int
    cache_hits: int
    cache_misses: int
    expired: int
    """Entries that expired since the harness was made: those that reads found, and those that cleanup removed when a
    micro-batch ended (`snapshot` and `pause` end one)."""
    late: int
    timers_fired: int


@dataclass
class KeyedHarness(Generic[R]):
    """Drives one `KeyedProcessFunction`, `KeyedCoProcessFunction` or `KeyedBroadcastFunction` over one backend.

        h = KeyedHarness(CountWords(), key=lambda word: word.text)
        h.process(Word("a"), timestamp=1)
        h.watermark(10)
        assert h.output() == [Count("a", 1), Watermark(10)]

    A function with two inputs has a key for each, and gets records from `process1` and `process2`:

        h = KeyedHarness(Paid(), key=(lambda order: order.id, lambda payment: payment.order))
        h.process1(Order(7), timestamp=1)
        h.process2(Payment(order=7), timestamp=2)

    A `KeyedBroadcastFunction` has one key, and gets broadcast records from `process_broadcast`.

    Processing time is that of `clock`, a virtual clock that starts at `now` (ms). `h.clock.advance(ms)` advances it, and timers
    that are due then fire before it returns. A record sees the processing time at which it runs, as if each call were a
    micro-batch. `h.pause(ms)` advances it, too, but nothing runs meanwhile: TTL with `OnGap.PROLONG` prolongs lifetimes
    by the pause.

    With backend "delta", `snapshot` and `pause` commit the changes to Delta tables of the harness, and later reads go
    to these tables: `h.table("keyed_state")` returns the rows.

    By default every call runs until nothing is left to do. With `automatic=False`, records run until they wait for
    state, and `step()` answers one batch of requests. State is then never answered at once, whatever the backend,
    unless it is in the cache: so the same function has the same counters on every backend.

    With `starts_batches=True` in addition, batches start as in a job: when `buffer_size` requests wait, or the first of
    them has waited for `buffer_timeout` by the harness's clock, and `io_parallelism` leaves room. `step()` then answers
    the batch that started first.

    Raises `TypeError` unless there is a key for each input, `ValueError` for `starts_batches` with `automatic`, a
    `max_parallelism` below 1 and an unknown backend; and what `Stream.key_by`, `process` and `side` raise.
    """

    function: KeyedProcessFunction[R, Any] | KeyedCoProcessFunction[Any, Any, Any] | KeyedBroadcastFunction[R, Any, Any]
    key: Callable[[R], Any] | tuple[Callable[[Any], Any], Callable[[Any], Any]]
    backend: BackendName | StateBackend = "hashmap"
    options: AsyncStateOptions = field(default_factory=AsyncStateOptions)
    max_parallelism: int = 128
    automatic: bool = True
    side_outputs: dict[str, type[msgspec.Struct]] = field(default_factory=dict)
    starts_batches: bool = False
    now: InitVar[int] = 0

    def __post_init__(self, now: int) -> None:
        """Install the virtual clock; `close`, or the end of a `with` block, removes it.

        Raises `TypeError` unless there is a key for each input, and for states that the function cannot declare;
        `ValueError` for `starts_batches` with `automatic`, and a `max_parallelism` below 1; and what `Stream.key_by`,
        `process` and `side` raise.
        """
        check_backend(self.backend)
        check_function("a harness", self.function, KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastFunction)
        declared_states(self.function)
        self._methods = input_methods(self.function)
        self._keys = self.key if isinstance(self.key, tuple) else (self.key,)
        keyed = [method for method in self._methods if method != BROADCAST_METHOD]
        if len(self._keys) != len(keyed):
            msg = f"{type(self.function).__name__} takes in keyed records by {listed_methods(keyed)}: it needs a key for each"
            raise TypeError(msg)
        if self.starts_batches and self.automatic:
            raise ValueError("starts_batches is for single steps: give automatic=False beside it")
        if self.max_parallelism < 1:
            msg = f"max_parallelism must be at least 1, not {self.max_parallelism}"
            raise ValueError(msg)
        self._operator = described_process(self.function, self._keys, self.side_outputs)
        self._key_readers = [key_reader(KeyBy(function=key)) for key in self._keys]
        self.clock = HarnessClock(self._advance)
        self.clock.start_at(now)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._tables: CommittedTables | None = None
        self._store = self._open()
        self._records, _ = function_types(self.function)
        self._codec = RecordCodec("function", self._records)
        self._ordinal = 1
        self._moved = 0
        self._expired = 0
        self._watermark: int | None = None
        self._latest_event: int | None = None
        self._declared_ttls = {
            f"{self._operator.name}.{state.name}": state.ttl for state in declared_states(self.function).values()
        }
        self._ttl = TtlHistory()
        self._output = HarnessOutput(self.side_outputs, in_order=self.automatic)
        self._emitted_before: list[Emitted] = []
        self._start()

    @classmethod
    def restore(
        cls,
        snapshot: Snapshot,
        function: KeyedProcessFunction[R, Any]
        | KeyedCoProcessFunction[Any, Any, Any]
        | KeyedBroadcastFunction[R, Any, Any],
        **arguments: Any,
    ) -> KeyedHarness[R]:
        """Return a harness that continues from `snapshot`, with any other backend, options or code.

        States whose TTL is switched on with it lose no entry at once: no lifetime begins before (see docs/ttl.md,
        "Changing a TTL"). Raises `ValueError` for another `max_parallelism` than the snapshot's, and what the
        constructor raises.
        """
        harness = cls(function, **arguments)
        if harness.max_parallelism != snapshot.max_parallelism:
            harness.close()
            msg = f"the snapshot has {counted(snapshot.max_parallelism, 'key group')}, not {harness.max_parallelism}"
            raise ValueError(msg)
        harness._restore_entries(snapshot.entries)
        harness._ordinal, harness._watermark = snapshot.ordinal, snapshot.watermark
        harness._ttl, harness._latest_event = snapshot.ttl, snapshot.latest_event
        harness.clock.start_at(snapshot.processing_time)
        harness._start()
        return harness

    def process(self, record: R, timestamp: int | None = None, *, kind: RowKind = RowKind.INSERT) -> None:
        """Pass a record to the function. `timestamp` is its event time (ms), by default the clock's.

        Raises `TypeError` for a function that has two inputs, and `ValueError` for a record whose key is null.
        """
        self._give("process", record, timestamp, kind)

    def process1(self, record: Any, timestamp: int | None = None, *, kind: RowKind = RowKind.INSERT) -> None:
        """Pass a record to the first of two inputs. Raises `TypeError` for a function with one input."""
        self._give("process1", record, timestamp, kind)

    def process2(self, record: Any, timestamp: int | None = None, *, kind: RowKind = RowKind.INSERT) -> None:
        """Pass a record to the second of two inputs. Raises `TypeError` for a function with one input."""
        self._give("process2", record, timestamp, kind)

    def process_broadcast(self, record: Any, timestamp: int | None = None, *, kind: RowKind = RowKind.INSERT) -> None:
        """Finish all records before, then pass a broadcast record. Raises `TypeError` for a function without broadcast input."""
        self._give(BROADCAST_METHOD, record, timestamp, kind)

    def watermark(self, timestamp: int) -> None:
        """Advance the watermark to `timestamp` (ms). Raises `ValueError` if that is earlier than the last one."""
        if self._watermark is not None and timestamp < self._watermark:
            msg = f"the watermark is at {self._watermark} and cannot go back to {timestamp}"
            raise ValueError(msg)
        self.clock.use()
        self._watermark = timestamp
        at = ElementWatermark(record_order(self._ordinal), timestamp)
        self._process.advance(at, lambda: self._passed(timestamp))
        self._settle()

    def pause(self, milliseconds: int) -> None:
        """Pause the job: finish and commit all begun work, advance processing time (ms), and begin the next micro-batch.

        States with `OnGap.PROLONG` live longer by a pause longer than their `gap_threshold`; by the watermark, only by
        the part of it that the watermark has not passed. Timers of processing time that have become due fire at the end
        of the pause. Counters of `statistics` start again. Raises `ValueError` for less than a millisecond.
        """
        if milliseconds < 1:
            msg = f"a pause takes at least 1 ms, not {milliseconds}"
            raise ValueError(msg)
        self.clock.use()
        self._commit()
        since = self.clock.now()
        self.clock.start_at(since + milliseconds)
        self._start(paused_since=since)
        self._advance(self.clock.now())

    def step(self) -> bool:
        """Answer one batch of state requests, and run the callbacks that become ready; return False when nothing was left.

        With `starts_batches`, it returns False when no batch had started: waiting requests then need more records, a
        later clock, or `drain`.
        """
        self.clock.use()
        controller = self._process.controller
        executor = self._executor
        begun = executor.finish() if isinstance(executor, SteppedExecutor) else controller.batches.fire()
        busy = begun or controller.has_work
        controller.poll()
        return busy

    def drain(self) -> None:
        """Run until nothing is left to do."""
        self.clock.use()
        self._process.controller.drain()

    def output(self) -> list[Any]:
        """Return what was emitted since the last call: records, `Watermark`, `LateRecord` and `SideRecord`, in order."""
        self._collect()
        return self._output.take()

    def kinds(self) -> list[tuple[RowKind, Any]]:
        """Return all records emitted to the main output so far, each with its row kind."""
        emitted = [*self._emitted_before, *self._process.emitted]
        return [(RowKind(record.kind), record.record) for record in emitted]

    def quarantined(self) -> list[tuple[Any, str]]:
        """Return the records that the function quarantined since its start, or the last snapshot or pause, with the reasons."""
        return [(refusal.record, refusal.reason) for refusal in self._process.refused]

    def state(self, name: str, key: Any, namespace: str = "") -> Any:
        """Return the current value of a state for a key, without TTL: a value or accumulator, or None; a list; a dict.

        Broadcast state is one dict for all keys.
        """
        stores: list[StateStore | BroadcastStore] = [*self._process.stores, *self._process.broadcast.stores]
        store = next(store for store in stores if store.name == name)
        return store.peek(msgspec.json.encode(key), namespace)

    def table(self, name: str) -> pa.Table:
        """Return the live rows of a state table, "keyed_state" or "timers", as of the last `snapshot` or `pause`.

        Raises `ValueError` for a backend other than "delta", which has no tables.
        """
        if self._tables is None:
            msg = f"only backend 'delta' commits to tables, and this harness has {self.backend!r:.60}"
            raise ValueError(msg)
        return self._tables.table(name)

    def statistics(self) -> HarnessStatistics:
        """Return the counters of the controller and of the state's cache. A snapshot resets all of them but `expired`."""
        parts = self._process.statistics()
        states = parts.states.values()
        return HarnessStatistics(
            in_flight=parts.controller.in_flight,
            active=parts.controller.active,
            blocking=parts.controller.blocking,
            occupied_keys=parts.controller.occupied_keys,
            epochs=parts.controller.epochs,
            batches=parts.controller.batches,
            batches_in_flight=parts.controller.batches_in_flight,
            requests=parts.controller.requests,
            cache_hits=sum(state.hits for state in states),
            cache_misses=sum(state.misses for state in states),
            expired=self._expired + sum(state.expired for state in states) + parts.removed,
            late=self._late,
            timers_fired=parts.timers.fired,
        )

    def snapshot(self) -> Snapshot:
        """Drain, and return the content of a checkpoint. The harness continues."""
        self._commit()
        self._start()
        entries = tuple(sorted(self._store.items()))
        return Snapshot(
            entries,
            self._watermark,
            self._ordinal,
            self.max_parallelism,
            self.clock.now(),
            self._ttl,
            self._latest_event,
        )

    def close(self) -> None:
        """Restore the real clock, and close the backend unless it was an argument."""
        self._process.controller.close()
        if self._store is not self.backend:
            self._store.close()
        clock.use(self.clock.replaced)
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> KeyedHarness[R]:
        """Return the harness."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the harness."""
        self.close()

    # ------------------------------------------------------------------------------------------------- private

    def _give(self, method: str, record: Any, timestamp: int | None, kind: RowKind) -> None:
        if method not in self._methods:
            msg = (
                f"{type(self.function).__name__} takes in records by {listed_methods(self._methods)}, not by {method}()"
            )
            raise TypeError(msg)
        input_ = self._methods.index(method)
        self.clock.use()
        time = self.clock.now() if timestamp is None else timestamp
        self._latest_event = latest((self._latest_event, time))
        is_keyed = method != BROADCAST_METHOD
        if is_keyed and self._watermark is not None and time <= self._watermark:
            self._output.add(LateRecord(record))
            self._late += 1
        order = record_order(self._ordinal)
        self._ordinal += 1
        key_json = self._key_of(record, input_) if is_keyed else BROADCAST_KEY
        # A task gets such a copy, in which 5 of a declared float is 5.0.
        arrived = self._codec.decode(key_json, encode(record), input_)
        element = Element(order, time, kind, key_json, arrived, input_)
        if is_keyed:
            self._process.process(element)
        else:
            self._process.process_broadcast(element)
        self._settle()

    def _key_of(self, record: Any, input_: int) -> bytes:
        key = self._key_readers[input_](record)
        if key is None and isinstance(self.function, OperatorFunction) and input_ in self.function.takes_null_keys:
            return encode(NULL_KEY)
        if key is None:
            msg = f"the key is null in {record}: no function of a job gets such a record, it goes to quarantine"
            raise ValueError(msg)
        return encode(key)

    def _restore_entries(self, entries: tuple[tuple[bytes, bytes], ...]) -> None:
        # A backend over tables finds cleanup timers by these: it returns no entries that say when they fire.
        timers = (timer_of(entry) for entry, _ in entries if entry[:1] == TIMER_PREFIX)
        self._store.write_batch(known_timers(timers))
        if self._tables is None:
            self._store.write_batch(entries)
        else:
            self._tables.restore(entries)
            self._store = self._tables.backend

    def _open(self) -> StateBackend:
        if not isinstance(self.backend, str):
            return self.backend
        self._folder = tempfile.TemporaryDirectory()
        if self.backend == "delta":
            from headrace.testing._committed_tables import CommittedTables

            self._tables = CommittedTables(Path(self._folder.name), self.max_parallelism)
            return self._tables.backend
        return new_backend(self.backend, Path(self._folder.name), self.max_parallelism)

    def _start(self, paused_since: int | None = None) -> None:
        """Start a task over the backend's entries, as a micro-batch does; after a pause that began at `paused_since` (ms), if given."""
        self._ttl = self._ttl.advanced(
            self._declared_ttls,
            paused_since=paused_since,
            watermark_of=lambda _: self._watermark,
            latest_event_of=lambda _: self._latest_event,
            processing_time=self.clock.now(),
        )
        backend = self._store if self.automatic else DeferredBackend(self._store)
        self._executor = (
            SteppedExecutor(self._store, self.options.io_parallelism)
            if self.starts_batches
            else InlineStateExecutor(self._store)
        )
        self._process = KeyedProcess(
            self._operator,
            backend,
            records=self._records,
            watermark=self._watermark,
            last_watermark=None,
            lifetimes=self._ttl.lifetimes(self._operator.name),
            options=self.options,
            executor=self._executor,
        )
        for store in self._process.broadcast.stores:
            store.load(broadcast_rows(self._store, store.name))
        self._process.controller.batches.fires_by_itself = self.automatic or self.starts_batches
        self._late = 0
        self._output.restart()

    def _commit(self) -> None:
        """End the micro-batch: finish all work, and write the changes to the backend."""
        self.drain()
        self._collect()
        changes = self._process.changes()
        writes = [write for store, changed in changes for write in store.writes(changed)]
        writes += self._process.cleanup.writes()
        timers = self._process.timers.changes()
        writes += self._process.timers.writes(timers)
        if self._tables is None:
            self._store.write_batch(writes)
        else:
            self._tables.commit(changes, timers, writes)
            self._store = self._tables.backend
        self._expired += sum(store.expired for store in self._process.stores) + self._process.cleanup.removed
        self._emitted_before += self._process.emitted

    def _advance(self, now: int) -> None:
        """Apply an advance of processing time, as between two micro-batches."""
        self.clock.use()
        self._moved += 1
        self._process.advance_processing_time(ProcessingTime(processing_time_order(self._ordinal, self._moved), now))
        self._settle()

    def _settle(self) -> None:
        if self.automatic:
            self.drain()
            self._collect()
        elif self.starts_batches:
            self._process.controller.poll()

    def _passed(self, timestamp: int) -> None:
        self._collect()
        self._output.add(Watermark(timestamp))

    def _collect(self) -> None:
        self._output.collect(self._process)
