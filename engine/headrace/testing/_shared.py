"""Parts that harnesses share: backends, a stepped executor, committed tables, descriptions.

State tables of a harness: it commits the changes of each micro-batch to them, as a job does with backend `delta`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
import pyarrow as pa

from headrace.api.functions import (
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    function_types,
)
from headrace.api.graph import Node, Process, SourceNode
from headrace.api.types import check_function, check_record
from headrace.commit.job_tables import JobTables
from headrace.execution.executor import answer
from headrace.execution.requests import AsyncRequest
from headrace.names import did_you_mean
from headrace.state.backend import (
    GROUPED_PREFIX,
    TIMER_PREFIX,
    VALUE_PREFIX,
    EntryChange,
    HashMapBackend,
    StateBackend,
    Write,
    named,
    unpacked,
)
from headrace.state.key_groups import KeyGroupRange
from headrace.state.rocksdb import RocksDbBackend, StateCache
from headrace.state.timers import TimerChange, timer_of
from headrace.stream.pipeline import Pipeline
from headrace.stream.stream import Stream
from headrace.tables.changelog import Changelog, KeyedState, parts, stage_state
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.schemas import KEYED_STATE, TIMERS
from headrace.tables.view import state_view

BackendName = Literal["hashmap", "rocksdb", "delta"]

_CACHE_BYTES = 64 << 20


class DeferredBackend:
    """A backend that never answers at once, so that a test can watch single steps."""

    answers_at_once = False

    def __init__(self, backend: StateBackend) -> None:
        """Read from and write to `backend`."""
        self.get_many = backend.get_many
        self.write_batch = backend.write_batch
        self.scan = backend.scan
        self.items = backend.items
        self.visit = backend.visit
        self.may_have = backend.may_have
        self.scans_keys = backend.scans_keys
        self.close = backend.close


def check_backend(backend: BackendName | StateBackend) -> None:
    """Raise `ValueError` for an unknown name of a backend."""
    names = get_args(BackendName)
    if isinstance(backend, str) and backend not in names:
        msg = f"there is no backend '{backend}'{did_you_mean(backend, names)} (there are: {', '.join(names)})"
        raise ValueError(msg)


def new_backend(name: BackendName, folder: Path, max_parallelism: int) -> StateBackend:
    """Return an empty backend with its files in `folder`. For `hashmap` it imports no libraries of the others."""
    if name == "hashmap":
        return HashMapBackend()
    from headrace.state.rocksdb import RocksDbBackend

    if name == "rocksdb":
        return RocksDbBackend(folder / "state")
    from headrace.commit.job_tables import JobTables
    from headrace.state.rocksdb import StateCache
    from headrace.tables.delta_backend import DeltaBackend

    tables = str(folder / "tables")
    return DeltaBackend(
        tables,
        JobTables(tables, "harness", "harness").create(),
        "function",
        KeyGroupRange(0, max_parallelism - 1),
        StateCache(RocksDbBackend(folder / "cache"), _CACHE_BYTES),
        max_parallelism=max_parallelism,
    )


class SteppedExecutor:
    """Holds started batches until `finish` answers the first one, or the task must wait for it."""

    def __init__(self, backend: StateBackend, batches: int) -> None:
        """Read from `backend`; have room for `batches` batches at once."""
        self._backend = backend
        self._batches = batches
        self._started: deque[Sequence[AsyncRequest]] = deque()
        self._done: list[AsyncRequest] = []

    @property
    def in_flight(self) -> int:
        """Return the number of submitted batches that `completed` has not returned yet."""
        return len(self._started) + bool(self._done)

    @property
    def has_completed(self) -> bool:
        """Return whether a call of `completed` without waiting may return requests."""
        return bool(self._done)

    @property
    def has_room(self) -> bool:
        """Return whether another batch would start at once."""
        return len(self._started) < self._batches

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
        self._started.append(batch)

    def finish(self) -> bool:
        """Answer the batch that started first; return whether there was one."""
        if not self._started:
            return False
        batch = self._started.popleft()
        answer(self._backend, batch)
        self._done += batch
        return True

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
        if wait and not self._done:
            self.finish()
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Wait for running requests, and release resources."""


OPERATOR = "function"

StateChanges = Iterable[tuple[KeyedState, Sequence[EntryChange]]]


class _Restored:
    """A state of a snapshot, whose lifetimes are unknown."""

    def __init__(self, name: str) -> None:
        self.name = name

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """Return None: the lifetime is unknown."""
        del stamp, own_ttl
        return None


class CommittedTables:
    """Tables in a folder, and the backend over their committed rows."""

    def __init__(self, folder: Path, max_parallelism: int) -> None:
        """Create empty tables."""
        self._folder = str(folder / "tables")
        self._cache = folder / "cache"
        self._max_parallelism = max_parallelism
        self._tables = JobTables(self._folder, "harness", "harness")
        self._versions = self._tables.create()
        self._numbers = itertools.count(1)
        self.backend = self._opened()

    def commit(self, states: StateChanges, timers: Sequence[TimerChange], writes: Iterable[Write]) -> None:
        """Commit a micro-batch, and open a backend over it. `writes` are the same changes in the form of a backend."""
        number = next(self._numbers)
        log = Changelog(OPERATOR, number, self._max_parallelism)
        rows = {
            KEYED_STATE: [log.values(state, changes) for state, changes in states if changes],
            TIMERS: [log.timers(timers)] if timers else [],
        }
        staged = {
            name: [
                stage_state(self._folder, name, f"{number:010d}-{place}.parquet", part)
                for place, part in enumerate(part for table in tables for part in parts(name, table))
            ]
            for name, tables in rows.items()
        }
        self._versions = self._tables.prepare(staged, self._versions)
        self.backend.write_batch(writes)
        self.backend.close()
        self.backend = self._opened()

    def restore(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Commit the entries of a snapshot."""
        states: dict[str, list[EntryChange]] = {}
        for entry, value in entries:
            if entry[:1] in {VALUE_PREFIX, GROUPED_PREFIX}:
                state, key_json, namespace, user_key = named(entry)
                stamp, own_ttl, raw = unpacked(value)
                change = EntryChange(key_json, raw, stamp, own_ttl, namespace, user_key)
                states.setdefault(state, []).append(change)
        timers = [TimerChange(timer_of(entry), True) for entry, _ in entries if entry[:1] == TIMER_PREFIX]
        self.commit([(_Restored(name), changes) for name, changes in states.items()], timers, entries)

    def table(self, name: str) -> pa.Table:
        """Return the live rows of a state table."""
        return state_view(self._folder, name, self._versions[name]).live()

    def _opened(self) -> DeltaBackend:
        return DeltaBackend(
            self._folder,
            self._versions,
            OPERATOR,
            KeyGroupRange(0, self._max_parallelism - 1),
            StateCache(RocksDbBackend(self._cache), _CACHE_BYTES),
            max_parallelism=self._max_parallelism,
        )


KeyFunction = Callable[[Any], Any]

_KEYED = (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastFunction)


def described_stream(record: type[msgspec.Struct], pipeline: Pipeline | None = None) -> Stream[Any]:
    """Return a stream of records without a field of event time: a harness gets the event time with each record."""
    check_record("a harness", record)
    pipeline = Pipeline("harness") if pipeline is None else pipeline
    node = Node(SourceNode(f"input_{len(pipeline.nodes)}", record, "", (), None, timedelta(0)), ())
    pipeline.nodes.append(node)
    return Stream(pipeline, node, record)


def described_process(
    function: KeyedFunction, keys: tuple[KeyFunction, ...], side_outputs: Mapping[str, type[msgspec.Struct]]
) -> Process:
    """Return a keyed function in the form of a pipeline. `keys` has one for each keyed input.

    Raises `TypeError` and `ValueError` as `Stream.key_by`, `connect`, `process` and `side` do.
    """
    check_function("a harness", function, *_KEYED)
    pipeline = Pipeline("harness")
    first, *others = [described_stream(record, pipeline) for record in function_types(function)[0]]
    keyed = first.key_by(keys[0])
    if isinstance(function, KeyedProcessFunction):
        processed = keyed.process("function", function)
    elif isinstance(function, KeyedBroadcastFunction):
        processed = keyed.connect(others[0].broadcast()).process("function", function)
    else:
        assert isinstance(function, KeyedCoProcessFunction)  # noqa: S101 - the last kind
        processed = keyed.connect(others[0].key_by(keys[1])).process("function", function)
    for name, record in side_outputs.items():
        processed.side(name, record)
    return cast("Process", pipeline.operators[-1])
