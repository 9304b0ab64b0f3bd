"""Keyed stage in one task: one operator over a range of key groups."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace import crash_points
from headrace.api.batches import ColumnFunction
from headrace.api.functions import KeyedBroadcastFunction
from headrace.api.graph import AsyncWait, Process, UpsertMaterialize
from headrace.api.key_events import EventFunction
from headrace.errors import EngineBug
from headrace.execution.broadcast import is_broadcast
from headrace.execution.drain import BufferedRequest, Held, divided, merged
from headrace.execution.element import (
    Element,
    ProcessingTime,
    RecordCodec,
    Watermark,
)
from headrace.execution.keyed_process import KeyedProcess
from headrace.log.progress import TaskProgress
from headrace.plan.loader import plan_of
from headrace.plan.stages import KeyedStage, Plan
from headrace.records.order import processing_time_order, record_order
from headrace.run.async_stage import AsyncStage
from headrace.run.backend import TaskBackend, open_backend
from headrace.run.column_work import ColumnWork
from headrace.run.flow import laid
from headrace.run.materializer_stage import MaterializerWork, Needed, needed_rows
from headrace.run.messages import KeyedTask, TaskReport
from headrace.run.output import TaskOutput, columnar
from headrace.run.rows import ColumnarRows, Rows, Taker, elements_of, handed_on, joined
from headrace.run.watch import StopSign, TaskNotes, keyed_stage
from headrace.state.backend import EntryChange
from headrace.state.broadcast import BroadcastRow
from headrace.state.key_groups import KeyGroupRange, key_group_range
from headrace.state.store import StateStore
from headrace.state.values import READ_AHEAD
from headrace.tables.changelog import QuarantineRow
from headrace.tables.entries import broadcast_groups, load_broadcast_state
from headrace.tables.requests import StoredRequest, load_buffered_requests, numbered_requests
from headrace.tables.schemas import BUFFERED_REQUESTS, KEYED_STATE, TIMERS

_AT_ONCE: Final = 8
"""Part of a task's memory, one of so many, that records may take which are processed at once."""


def run_keyed(task: KeyedTask, index: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Run the stage's operator over the batches that belong to task `index`."""
    plan = plan_of(task.batch.code)
    stage = plan.keyed[task.stage]
    name = stage.name
    groups = key_group_range(index, task.batch.max_parallelism, task.batch.parallelism)
    output = TaskOutput(task.batch, name, str(groups))
    notes = TaskNotes(task.batch, keyed_stage(task.stage), str(index))
    with open_backend(task, name, groups) as opened:
        work = _Work(task, plan, stage, opened, groups, output, notes)
        batches = _checked(batches, groups)
        if isinstance(stage.operator, Process):
            work.process(stage.operator, batches)
        elif isinstance(stage.operator, AsyncWait):
            work.wait(stage.operator, work.elements(batches))
        else:
            work.materialize(stage.operator, batches)
        crash_points.reached("task.half")
    notes.end()
    output.report.local_copy = {str(groups): opened.copy}
    output.count(**opened.metrics)
    return output.report


def _checked(batches: Iterable[pa.RecordBatch], groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
    """Yield the batches with rows. Raises `EngineBug` for rows of another task."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        extremes = pc.min_max(batch["key_group"]).as_py()
        if extremes["min"] not in groups or extremes["max"] not in groups:
            msg = f"key groups {extremes} reached the task that owns {groups}"
            raise EngineBug(msg)
        yield batch


@dataclass(frozen=True, slots=True)
class _Work:
    """Work of one operator with its open backend and its output."""

    task: KeyedTask
    plan: Plan
    stage: KeyedStage
    opened: TaskBackend
    key_groups: KeyGroupRange
    output: TaskOutput
    notes: TaskNotes

    @property
    def codec(self) -> RecordCodec:
        """Return the codec of the records that the operator takes in."""
        return RecordCodec(self.stage.operator.name, self.stage.takes)

    def elements(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Element]]:
        """Return the rows of batches as elements."""
        return (elements_of(batch, self.stage.takes) for batch in batches)

    def process(self, operator: Process, batches: Iterable[pa.RecordBatch]) -> None:
        watermarks = [Watermark(record_order(ordinal), time) for ordinal, time in self.task.watermarks]
        began = processing_time_order(self.task.first_ordinal, self.task.batch.checkpoint_id)
        process = KeyedProcess(
            operator,
            self.opened.backend,
            records=self.stage.takes,
            watermark=self.task.watermark,
            last_watermark=watermarks[-1].timestamp if watermarks else None,
            processing_time=ProcessingTime(began, self.task.processing_time),
            stage=self.task.stage,
            lifetimes=self.task.state_ttl.lifetimes(operator.name),
            timers_fired=self.task.timers_fired,
            options=self.task.async_state,
            owns_broadcast=self._owns_broadcast,
            spilled=self.opened.spilled,
        )
        process.broadcast.load(self._broadcast_state(operator))
        resumed = self._resumed()
        emitted = _Emitted(self, operator, process)
        if self._takes_columns(operator) and not resumed:
            work = ColumnWork(operator, process, watermarks, self.task.watermark, self.stage.takes)
            batches = self._behind_columns(work, batches, emitted)
        held = process.run(
            emitted.drained(self.elements(self._with_state(process, batches))),
            watermarks,
            broadcast=self._broadcast(),
            resumed=[*(request for _, request in resumed), *self._held_broadcast(operator)],
            cut=self.task.cut,
            stop=self.notes.asked_along(StopSign(self.task), lambda: _progress(operator, process)),
        )
        self._keep_state(process)
        self._hold(resumed, held)
        statistics = process.controller.statistics()
        self.output.count_keyed(process.metrics)
        self.output.count(
            timers_fired=process.timers.fired,
            state_requests=statistics.requests,
            state_batches=statistics.batches,
        )
        self.output.quarantine(
            [
                QuarantineRow.of_record(
                    operator.name, refused.order, refused.record, refused.key_json.decode(), refused.reason
                )
                for refused in process.refused
            ]
        )
        emitted.end()
        process.drop()

    def _behind_columns(
        self, work: ColumnWork, batches: Iterable[pa.RecordBatch], emitted: _Emitted
    ) -> Iterable[pa.RecordBatch]:
        """Process records as columns, as many at once as memory allows; return those that have to be processed one by one.

        An operator that waits for all records holds them in any case: as columns they need less memory. Timers fire behind all columns,
        so an operator that has some takes what its memory allows, and the rest as records; one that takes the events of keys takes all or
        none. Behind records that are left, too, all come one by one: their keys may come again.
        """
        limit = None if work.process.waits_to_end else self.task.batch.memory_for(_AT_ONCE)
        batches = iter(batches)
        part = _part_of(batches, limit)
        behind = next(batches, None)
        if behind is None:
            rows, left = work.run(part)
            if rows is not None:
                emitted.take(rows)
            return _popped(left)
        batches = chain((behind,), batches)
        while part:
            rows, left = work.run(part, are_all=False)
            if rows is not None:
                emitted.take(rows)
            work.process.make_room()
            if left or rows is None:
                return chain(_popped(left), batches)
            part = _part_of(batches, limit)
        return ()

    def _with_state(self, process: KeyedProcess, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches. Before those of a part, read the values of all keys in it, but not where memory has a limit: values may be large."""
        if self.task.batch.max_memory is not None or not self.opened.backend.is_sorted:
            yield from batches
            return
        batches = iter(batches)
        while part := _part_of(batches, None, READ_AHEAD):
            keys = pa.chunked_array([batch["key"] for batch in part]).unique()
            in_order = keys.take(pc.sort_indices(keys))  # a sort in Python takes three times as long
            process.read_ahead(in_order.to_pylist())
            yield from _popped(part)

    def _takes_columns(self, operator: Process) -> bool:
        """Return whether records may be processed as columns: none waits or is held, and state is accessed asynchronously."""
        function, task = operator.function, self.task
        return (
            isinstance(function, ColumnFunction | EventFunction)
            and task.async_state.enabled
            and task.cut is None
            and function.takes_columns
        )

    def wait(self, operator: AsyncWait, elements: Iterable[Sequence[Element]]) -> None:
        elements = self._up_to_cut(elements, self._resumed())
        task = self.task
        waits = AsyncStage(task.batch, task.async_io, self.key_groups, self.output, StopSign(task), self.notes)
        self._send_on(waits.run_keyed(operator, elements))

    def materialize(self, operator: UpsertMaterialize, batches: Iterable[pa.RecordBatch]) -> None:
        work = MaterializerWork(self.task, self.plan, self.stage, self.opened, self.output)
        resumed = self._resumed()
        if not resumed and self.task.cut is None:
            batches = [*batches]
            if work.pass_columns(operator, batches):
                return

        def changes(needed: Needed) -> Iterable[Sequence[Element]]:
            if resumed or self.task.cut is not None:
                return self._up_to_cut(self.elements(batches), resumed)
            return self.elements(needed_rows(batches, needed))

        work.run(operator, lambda needed: self._noted(operator, changes(needed)))

    def _noted(self, operator: UpsertMaterialize, elements: Iterable[Sequence[Element]]) -> Iterator[Sequence[Element]]:
        """Note the progress behind each batch of elements."""
        done = 0
        self.notes.measured_by(lambda: TaskProgress(operator=operator.name, rows=done))
        for batch in elements:
            yield batch
            done += len(batch)
            self.notes.note()

    def _keep_state(self, process: KeyedProcess) -> None:
        opened, output = self.opened, self.output
        self._keep_values(process)
        output.count(expired=process.cleanup.removed, expired_by_cleanup=process.cleanup.removed)
        opened.write(process.cleanup.writes())
        timers = process.timers.changes()
        opened.write(process.timers.writes(timers))
        output.state(TIMERS, output.changelog.timers(timers))
        output.report.timers_fired = process.timers.fired_until()

    def _keep_values(self, process: KeyedProcess) -> None:
        """Stage and store the changes of keyed state. Those of a store that has spilled some all go to the database first."""
        opened, output, spilled = self.opened, self.output, self.opened.spilled
        by_store = process.changes()
        while by_store:
            store, changes = by_store.pop(0)
            output.count(expired=store.expired)
            if spilled is not None and isinstance(store, StateStore) and spilled.has(store):
                spilled.add(store, _drained(changes))
                continue
            output.values(store, changes)
            opened.write(store.writes(_drained(changes)))  # after the file, whose rows need memory
        if spilled is not None:
            output.count(spilled=spilled.count)
            for store, part in spilled.parts():
                output.values(store, part)

    @property
    def _owns_broadcast(self) -> bool:
        """Return whether this task is the one that stores the broadcast state for all tasks."""
        return broadcast_groups(self.task.batch.max_parallelism).first in self.key_groups

    def _broadcast(self) -> list[Element]:
        """Return the broadcast records, which every task takes in."""
        tables = (handed_on(self.task.batch.folder.at(path)) for path in self.task.broadcast)
        batches = (batch for table in tables for batch in table.to_batches())
        return sorted((element for batch in batches for element in elements_of(batch, self.stage.takes)), key=_order_of)

    def _broadcast_state(self, operator: Process) -> list[BroadcastRow]:
        batch = self.task.batch
        if not isinstance(operator.function, KeyedBroadcastFunction):
            return []
        version = batch.versions[KEYED_STATE]
        return load_broadcast_state(batch.folder, version, operator.name, batch.max_parallelism)

    def _held_broadcast(self, operator: Process) -> list[BufferedRequest]:
        """Return the broadcast records that another task holds for all."""
        if self._owns_broadcast or not isinstance(operator.function, KeyedBroadcastFunction):
            return []
        stored = self._stored_requests(broadcast_groups(self.task.batch.max_parallelism))
        return [request for _, request in stored if is_broadcast(request)]

    def _up_to_cut(
        self, elements: Iterable[Sequence[Element]], resumed: Sequence[StoredRequest]
    ) -> Iterable[Sequence[Element]]:
        """Hold elements at or after the cut; return resumed ones and those before the cut."""
        if resumed or self.task.cut is not None:
            elements, held = divided(merged(elements, [request for _, request in resumed]), self.task.cut, self.codec)
            self._hold(resumed, held)
        return elements

    def _resumed(self) -> list[StoredRequest]:
        return self._stored_requests(self.key_groups)

    def _stored_requests(self, groups: KeyGroupRange) -> list[StoredRequest]:
        batch = self.task.batch
        if not self.task.resumes:
            return []
        version = batch.versions[BUFFERED_REQUESTS]
        return load_buffered_requests(batch.folder, version, self.stage.name, groups)

    def _hold(self, resumed: Sequence[StoredRequest], held: Held) -> None:
        """Store held records in place of those held before. A record that is held again keeps its row.

        In a long outage, all records after the first waiting element are held from run to run.
        """
        output = self.output
        again = {request for _, request in resumed} & set(held.requests)
        finished = [request for request in resumed if request.request not in again]
        new = numbered_requests(
            [request for request in held.requests if request not in again], self.task.batch.checkpoint_id
        )
        output.state(BUFFERED_REQUESTS, output.changelog.buffered(finished, new))
        if held.cut is not None:
            output.report.cuts[self.stage.name] = held.cut
        output.report.held = len(held.requests)
        output.count(resumed=len(finished), held=len(held.requests))

    def _send_on(self, rows: Rows, side: str | None = None) -> None:
        pipe = self.pipe(side)
        pipe.take(rows)
        pipe.end()

    def pipe(self, side: str | None = None) -> Taker:
        """Lay the pipes for what the operator emits."""
        return laid(self.stage.flows[side], self.output)


class _Emitted:
    """What an operator emits in a task. Where memory has a limit, it is sent on while the operator runs, and else at the end."""

    def __init__(self, work: _Work, operator: Process, process: KeyedProcess) -> None:
        self._has_limit = work.task.batch.max_memory is not None
        self._process = process
        self._pipes = {side: work.pipe(side) for side in (None, *(side.name for side in operator.side_outputs))}
        self._columns: ColumnarRows | None = None

    def take(self, rows: ColumnarRows) -> None:
        """Take what was emitted as columns: once, where memory has no limit."""
        self._columns = rows
        if self._has_limit:
            self._send_on()

    def drained(self, batches: Iterable[Sequence[Element]]) -> Iterator[Sequence[Element]]:
        """Yield the batches; send on what was emitted for each of them when the next one is asked for."""
        for batch in batches:
            yield batch
            if self._has_limit:
                self._process.sort_emitted()
                self._send_on()
                self._process.drop_emitted()

    def end(self) -> None:
        """Send on what is left, and the end."""
        self._send_on()
        for pipe in self._pipes.values():
            pipe.end()

    def _send_on(self) -> None:
        for side, pipe in self._pipes.items():
            pipe.take(self._of_main() if side is None else self._process.side_outputs[side])

    def _of_main(self) -> Rows:
        """Return what was emitted to the main output. Columns and records are in arrival order together."""
        columns, records = self._columns, self._process.emitted
        self._columns = None
        if columns is None:
            return records
        return joined([columns, columnar(records, columns.record, self._process.operator.name)]) if records else columns


def _part_of(batches: Iterator[pa.RecordBatch], limit: int | None, rows: int = sys.maxsize) -> list[pa.RecordBatch]:
    """Return the next batches, at least one, of about `limit` bytes and `rows`; any number of bytes where `limit` is None."""
    part, size = [], 0
    for batch in batches:
        part.append(batch)
        size += batch.nbytes
        rows -= batch.num_rows
        if rows <= 0 or (limit is not None and size >= limit):
            break
    return part


def _popped(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and drop each of them."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _drained(changes: list[EntryChange]) -> Iterator[EntryChange]:
    """Yield the changes, and drop each one before the next: `writes` makes another copy of its value."""
    changes.reverse()
    while changes:
        yield changes.pop()


def _progress(operator: Process, process: KeyedProcess) -> TaskProgress:
    statistics = process.controller.statistics()
    # Timers are in flight as well.
    done = max(0, process.metrics["records"] - statistics.in_flight)
    return TaskProgress(
        operator=operator.name,
        rows=done,
        in_flight=statistics.in_flight - statistics.blocking,
        waiting=statistics.blocking,
    )


_order_of = attrgetter("order")
