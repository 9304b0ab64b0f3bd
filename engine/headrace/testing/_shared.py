"""Parts that harnesses share: backends, a stepped executor, descriptions of streams and functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec

from headrace.api.functions import (
    KeyedBroadcastFunction,
    KeyedCoProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    function_types,
)
from headrace.api.graph import Node, Process, SourceNode
from headrace.api.types import check_function, check_record
from headrace.execution.executor import answer
from headrace.execution.requests import AsyncRequest
from headrace.names import did_you_mean
from headrace.state.backend import (
    HashMapBackend,
    StateBackend,
)
from headrace.state.key_groups import KeyGroupRange
from headrace.stream.stream import Pipeline, Stream

BackendName = Literal["hashmap", "rocksdb", "delta"]

_CACHE_BYTES = 64 << 20


class DeferredBackend:
    """A backend that never answers at once, so that a test can watch single steps."""

    is_in_memory = False

    def __init__(self, backend: StateBackend) -> None:
        """Read from and write to `backend`."""
        self.get_many = backend.get_many
        self.write_batch = backend.write_batch
        self.scan = backend.scan
        self.items = backend.items
        self.visit = backend.visit
        self.may_have = backend.may_have
        self.may_have_kind = backend.may_have_kind
        self.scans_keys = backend.scans_keys
        self.is_sorted = backend.is_sorted
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
    from headrace.tables.folder import JobFolder

    tables = JobFolder(str(folder / "tables"))
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
