"""Harness that drives one sink upsert materializer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace import clock
from headrace.api.graph import Emit, Keep, OnConflict, UpsertMaterialize
from headrace.api.records import RowKind
from headrace.api.ttl import StateTtl
from headrace.execution.element import Element, RecordCodec
from headrace.execution.element import Watermark as ElementWatermark
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.options import MaterializerOptions, Strategy
from headrace.records.order import record_order
from headrace.records.watermarks import latest
from headrace.state.backend import StateBackend
from headrace.state.codec import encode
from headrace.state.ttl import TtlHistory
from headrace.testing._clocks import OperatorClock
from headrace.testing._shared import BackendName, check_backend, described_stream, new_backend

R = TypeVar("R", bound=msgspec.Struct)

_HISTORY = "history"
"""Name of the state with the TTL."""


class MaterializerSnapshot(msgspec.Struct, frozen=True):
    """Content of a checkpoint: everything that the materializer has stored."""

    entries: tuple[tuple[bytes, bytes], ...]
    watermark: int | None
    ordinal: int
    processing_time: int
    ttl: TtlHistory = TtlHistory()
    latest_event: int | None = None
    """Latest event time of a row (ms)."""


@dataclass(frozen=True, slots=True)
class MaterializerStatistics:
    """Counts since the harness was made, and the current size of the state."""

    records: int
    unmatched_retractions: int
    expired: int
    """Rows that expired."""
    conflicts: int
    """Rows that `on_conflict` dropped."""
    keys: int
    rows: int
    maps: int
    """Keys whose history is a map."""


@dataclass
class MaterializerHarness(Generic[R]):
    """Drives one upsert materializer over one backend, as a task runs it.

        h = MaterializerHarness(Row, primary_key=("k",))
        h.process(RowKind.INSERT, Row("k", 1))
        h.process(RowKind.UPDATE_AFTER, Row("k", 2))
        assert h.output() == [(RowKind.INSERT, Row("k", 1)), (RowKind.UPDATE_AFTER, Row("k", 2))]

    `output()`, `watermark()`, `snapshot()` and `clock.advance()` end a micro-batch: with NET_CHANGE each micro-batch
    has one change for each key. Event time is that of `process`, processing time that of `clock`, which starts at `now` (ms).
    The thresholds are those of ADAPTIVE; None: the backend's defaults.

    Raises `ValueError` for thresholds that contradict each other, for an unknown backend, and the errors
    of `Stream.upsert_materialize`.
    """

    row_type: type[R]
    primary_key: tuple[str, ...]
    upsert_key: tuple[str, ...] | None = None
    strategy: Strategy = Strategy.ADAPTIVE
    threshold_high: int | None = None
    threshold_low: int | None = None
    ttl: StateTtl | None = None
    on_conflict: OnConflict = OnConflict.KEEP_HISTORY
    emit: Emit = Emit.EVERY_CHANGE
    keep: Keep = Keep.LAST
    backend: BackendName | StateBackend = "hashmap"
    now: InitVar[int] = 0

    def __post_init__(self, now: int) -> None:
        """Install the virtual clock; `close`, or the end of a `with` block, removes it.

        Raises `ValueError` for thresholds that contradict each other, and the errors of `Stream.upsert_materialize`:
        without a primary key, for a field that rows lack, for a `ttl` that rows of a history cannot have.
        """
        check_backend(self.backend)
        options = MaterializerOptions(threshold_high=self.threshold_high, threshold_low=self.threshold_low)
        name = self.backend if isinstance(self.backend, str) else "hashmap"
        self._layouts = options.layouts(self.strategy, name)
        self._operator = self._described()
        self.clock = _Clock(self._end_micro_batch)
        self.clock.start_at(now)
        self._replaced = clock.use(self.clock)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._store = self._open()
        self._codec = RecordCodec(self._operator.name, (self.row_type,))
        self._ordinal = 1
        self._watermark: int | None = None
        self._latest_event: int | None = None
        self._ttl = TtlHistory()
        self._advance_ttl()
        self._taken: list[Element] = []
        self._emitted: list[tuple[RowKind, R]] = []
        self._counts = dict.fromkeys(("records", "unmatched_retractions", "expired", "conflicts"), 0)
        self.unmatched: list[R] = []
        """Retractions that matched no row, in order: they go to quarantine."""

    @classmethod
    def restore(cls, snapshot: MaterializerSnapshot, row_type: type[R], **arguments: Any) -> MaterializerHarness[R]:
        """Return a harness that continues from `snapshot`, with any other backend, strategy or thresholds.

        A `ttl` that is switched on with it expires no row at once: no lifetime begins before. Raises the errors of the
        constructor.
        """
        harness = cls(row_type, **arguments)
        harness._store.write_batch(snapshot.entries)
        harness._ordinal, harness._watermark = snapshot.ordinal, snapshot.watermark
        harness.clock.start_at(snapshot.processing_time)
        harness._ttl, harness._latest_event = snapshot.ttl, snapshot.latest_event
        harness._advance_ttl()
        return harness

    def process(self, kind: RowKind, row: R, timestamp: int | None = None) -> None:
        """Pass a change to the materializer. `timestamp` is its event time (ms), by default the clock's.

        Raises `ValueError` for a row whose key is null: a job quarantines it before.
        """
        from headrace.records.keys import stage_key

        time = self.clock.now() if timestamp is None else timestamp
        key = stage_key(row, self.primary_key)
        if key is None:
            msg = f"the key ({', '.join(self.primary_key)}) is null in {row}: no materializer of a job gets such a row"
            raise ValueError(msg)
        key_json = encode(key)
        record = self._codec.decode(key_json, encode(row))
        self._taken.append(Element(record_order(self._ordinal), time, kind, key_json, record))
        self._ordinal += 1
        self._latest_event = latest((self._latest_event, time))

    def watermark(self, timestamp: int) -> None:
        """Advance the watermark to `timestamp` (ms), as at the end of a micro-batch. Raises `ValueError` if it would go back."""
        if self._watermark is not None and timestamp < self._watermark:
            msg = f"the watermark is at {self._watermark} and cannot go back to {timestamp}"
            raise ValueError(msg)
        self._end_micro_batch(timestamp)

    def output(self) -> list[tuple[RowKind, R]]:
        """End the micro-batch; return the changes emitted since the last call, in order."""
        self._end_micro_batch()
        changes, self._emitted = self._emitted, []
        return changes

    def history(self, *key: Any) -> list[R]:
        """Return a key's rows in order, given the values of its primary key."""
        self._end_micro_batch()
        raw = encode(key[0] if len(key) == 1 else list(key))
        return [msgspec.json.decode(row, type=self.row_type) for row in self._materializer().rows_of(raw)]

    def statistics(self) -> MaterializerStatistics:
        """Return the current counters."""
        self._end_micro_batch()
        sizes = self._materializer().sizes(entry for entry in dict(self._store.items()))
        return MaterializerStatistics(
            **self._counts,
            keys=len(sizes),
            rows=sum(size for size, _ in sizes),
            maps=sum(is_map for _, is_map in sizes),
        )

    def snapshot(self) -> MaterializerSnapshot:
        """Return the content of a checkpoint at this moment. The harness continues."""
        self._end_micro_batch()
        entries = tuple(sorted(self._store.items()))
        return MaterializerSnapshot(
            entries, self._watermark, self._ordinal, self.clock.now(), self._ttl, self._latest_event
        )

    def close(self) -> None:
        """Restore the real clock, and close the backend unless it was an argument."""
        if self._store is not self.backend:
            self._store.close()
        clock.use(self._replaced)
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> MaterializerHarness[R]:
        """Return the harness."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the harness."""
        self.close()

    # ------------------------------------------------------------------------------------------------- private

    def _described(self) -> UpsertMaterialize:
        rows = described_stream(self.row_type).upsert_materialize(
            "materializer",
            primary_key=self.primary_key,
            upsert_key=self.upsert_key,
            strategy=self.strategy,
            emit=self.emit,
            ttl=self.ttl,
            on_conflict=self.on_conflict,
            force=True,
        )
        return replace(cast("UpsertMaterialize", rows.operators[-1]), keep=self.keep)

    def _open(self) -> StateBackend:
        if not isinstance(self.backend, str):
            return self.backend
        self._folder = tempfile.TemporaryDirectory()
        return new_backend(self.backend, Path(self._folder.name), 128)

    def _materializer(self, *watermarks: int) -> UpsertMaterializer:
        return UpsertMaterializer(
            self._operator,
            self._store,
            record=self.row_type,
            layouts=self._layouts,
            watermark=self._watermark,
            watermarks=[ElementWatermark(record_order(self._ordinal), time) for time in watermarks],
            processing_time=self.clock.now(),
            ttl_since=self._ttl.lifetimes(self._operator.name).since.get(_HISTORY),
        )

    def _advance_ttl(self) -> None:
        """Store the current declaration in the TTL history, as the first micro-batch with it does."""
        self._ttl = self._ttl.advanced(
            {f"{self._operator.name}.{_HISTORY}": self.ttl},
            paused_since=None,
            watermark_of=lambda _: self._watermark,
            latest_event_of=lambda _: self._latest_event,
            processing_time=self.clock.now(),
        )

    def _end_micro_batch(self, *watermarks: int) -> None:
        """Run the accepted changes as a task does, and commit its results."""
        taken, self._taken = self._taken, []
        if not taken and not watermarks and self.ttl is None:
            return
        task = self._materializer(*watermarks)
        task.run([taken])
        for name in self._counts:
            self._counts[name] += task.metrics[name]
        self.unmatched += [msgspec.json.decode(retraction.row, type=self.row_type) for retraction in task.unmatched]
        sweeps = task.timer_changes()
        self._store.write_batch([*task.writes(), *task.timer_writes(sweeps)])
        self._emitted += [(out.kind, msgspec.json.decode(out.raw, type=self.row_type)) for out in task.outputs()]
        self._watermark = watermarks[-1] if watermarks else self._watermark


class _Clock(OperatorClock):
    """Clock of a harness: changes before an advance belong to the earlier micro-batch."""

    def __init__(self, moving: Callable[[], None]) -> None:
        super().__init__()
        self._moving = moving

    def start_at(self, now: int) -> None:
        """Set another start time than 0 (ms)."""
        super().follow(now - self.now())

    def follow(self, milliseconds: int) -> None:
        """End the micro-batch, advance time (ms), and run the sweeps that are due then."""
        self._moving()
        super().follow(milliseconds)
        self._moving()
