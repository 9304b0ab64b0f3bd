"""A keyed stage in one task: one operator over a range of key groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace import faults
from headrace.api import AsyncWait, Emit, KeyedBroadcastFunction, Lag, OnConflict, Process, UpsertMaterialize
from headrace.checkpoint.broadcast_state import broadcast_groups
from headrace.checkpoint.broadcast_state import load as load_broadcast
from headrace.checkpoint.buffered_requests import StoredRequest, load, numbered
from headrace.checkpoint.files import read_parquet
from headrace.checkpoint.state_schemas import HISTORY
from headrace.checkpoint.tables import BUFFERED_REQUESTS, KEYED_STATE, MATERIALIZER_HISTORY, TIMERS
from headrace.config import format_duration
from headrace.errors import EngineBug
from headrace.execution.broadcast_input import is_broadcast
from headrace.execution.element import Element, Emitted, ProcessingTime, Watermark
from headrace.execution.fast_drain import BufferedRequest, Held, divided, merged, seen_and_held
from headrace.execution.keyed_process import KeyedProcess
from headrace.execution.record_codec import RecordCodec
from headrace.materializer.lag import Lagging
from headrace.materializer.pass_through import PassThrough
from headrace.materializer.upsert_materializer import Unmatched, UpsertMaterializer
from headrace.plan.order import processing_time_order, record_order
from headrace.plan.pipelines import plan_of
from headrace.plan.stages import KeyedStage, Plan, SinkPlan, ToSink
from headrace.spark.async_stage import AsyncStage
from headrace.spark.flows import Sender
from headrace.spark.reports import KeyedTask, TaskReport
from headrace.spark.step_errors import refusing_unfit
from headrace.spark.stop_sign import StopSign
from headrace.spark.task_backend import TaskBackend, open_backend
from headrace.spark.task_output import QuarantineRow, TaskOutput
from headrace.spark.transit import Takes, elements_of
from headrace.state.broadcast_store import BroadcastRow
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange, key_group_range


def run_keyed(task: KeyedTask, index: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Run the stage's operator over the batches that belong to task `index`."""
    plan = plan_of(task.place.code)
    stage = plan.keyed[task.stage]
    name = stage.name
    groups = key_group_range(index, task.place.max_parallelism, task.place.parallelism)
    output = TaskOutput(task.place, name, str(groups))
    with open_backend(task, name, groups) as opened:
        work = _Work(task, plan, stage, opened, groups, output)
        elements = _elements(batches, groups, stage.takes)
        if isinstance(stage.operator, Process):
            work.process(stage.operator, elements)
        elif isinstance(stage.operator, AsyncWait):
            work.wait(stage.operator, elements)
        else:
            work.materialize(stage.operator, elements)
        faults.reached("task.half")
    output.report.local_copy = {str(groups): opened.copy}
    output.count(**opened.metrics)
    return output.report


def _elements(batches: Iterable[pa.RecordBatch], groups: KeyGroupRange, takes: Takes) -> Iterator[list[Element]]:
    for batch in batches:
        if batch.num_rows == 0:
            continue
        extremes = pc.min_max(batch["key_group"]).as_py()
        if extremes["min"] not in groups or extremes["max"] not in groups:
            msg = f"key groups {extremes} reached the task that owns {groups}"
            raise EngineBug(msg)
        yield elements_of(batch, takes)


@dataclass(frozen=True, slots=True)
class _Work:
    """One operator, its open backend, and where its results go."""

    task: KeyedTask
    plan: Plan
    stage: KeyedStage
    opened: TaskBackend
    key_groups: KeyGroupRange
    output: TaskOutput

    @property
    def codec(self) -> RecordCodec:
        """Encodes and decodes the records that the operator takes in."""
        return RecordCodec(self.stage.operator.name, self.stage.takes)

    def process(self, operator: Process, elements: Iterable[Sequence[Element]]) -> None:
        watermarks = [Watermark(record_order(ordinal), time) for ordinal, time in self.task.watermarks]
        began = processing_time_order(self.task.first_ordinal, self.task.place.checkpoint_id)
        process = KeyedProcess(
            operator,
            self.opened.backend,
            records=self.stage.takes,
            watermark=self.task.watermark,
            last_watermark=watermarks[-1].timestamp if watermarks else None,
            processing_time=ProcessingTime(began, self.task.processing_time),
            stage=self.task.stage,
            lives=self.task.state_ttl.lives(operator.name),
            timers_fired=self.task.timers_fired,
            options=self.task.async_state,
            owns_broadcast=self._owns_broadcast,
        )
        process.broadcast.load(self._broadcast_state(operator))
        resumed = self._resumed()
        held = process.run(
            elements,
            watermarks,
            broadcast=self._broadcast(),
            resumed=[*(request for _, request in resumed), *self._held_broadcast(operator)],
            cut=self.task.cut,
            stop=StopSign(self.task),
        )
        self._keep_state(process)
        self._hold(resumed, held)
        made = process.controller.statistics()
        self.output.count(
            **_counted(process.metrics),
            timers_fired=process.timers.fired,
            state_requests=made.requests,
            state_batches=made.batches,
        )
        self._send_on(process.emitted)
        for side in operator.side_outputs:
            self._send_on(process.side_outputs[side.name], side.name)

    def wait(self, operator: AsyncWait, elements: Iterable[Sequence[Element]]) -> None:
        resumed = self._resumed()
        if resumed or self.task.cut is not None:
            elements, held = divided(merged(elements, [request for _, request in resumed]), self.task.cut, self.codec)
            self._hold(resumed, held)
        waits = AsyncStage(self.task.place, self.task.async_io, self.key_groups, self.output, StopSign(self.task))
        self._send_on(waits.run_keyed(operator, elements))

    def materialize(self, operator: UpsertMaterialize, elements: Iterable[Sequence[Element]]) -> None:
        resumed = self._resumed()
        if resumed or self.task.cut is not None:
            elements, held = divided(merged(elements, [request for _, request in resumed]), self.task.cut, self.codec)
            self._hold(resumed, held)
        sink = self._materialized()
        if self.output.merges_into(sink.name):
            operator = replace(operator, emit=Emit.NET_CHANGE)
        with_history = self._with_history if operator.is_needed else self._without_history
        materializer = with_history(operator, elements)
        self.output.count(**_counted(materializer.metrics))
        decode = msgspec.json.Decoder(self.stage.record).decode
        rows = [Emitted(order, 0, kind, decode(raw)) for order, kind, _, raw in materializer.outputs()]
        with refusing_unfit(operator.name, rows):
            self.output.changes(sink, rows)

    def _without_history(self, operator: UpsertMaterialize, elements: Iterable[Sequence[Element]]) -> PassThrough:
        passing = PassThrough(operator, self.opened.backend, record=self.stage.takes[0])
        passing.run(elements)
        self._keep_history(operator, passing)
        return passing

    def _keep_history(self, operator: UpsertMaterialize, materializer: UpsertMaterializer | PassThrough) -> None:
        changes = materializer.changes()
        self.opened.write(materializer.writes())
        self.output.state(
            MATERIALIZER_HISTORY, self.output.changelog.history(changes, _upsert_key(operator, self.stage.takes[0]))
        )

    def _with_history(self, operator: UpsertMaterialize, elements: Iterable[Sequence[Element]]) -> UpsertMaterializer:
        task, output = self.task, self.output
        watermarks, _ = seen_and_held([Watermark(record_order(at), time) for at, time in task.watermarks], task.cut)
        layouts = task.upsert_materialize.layouts(operator.strategy, task.place.backend)
        made: Any = Lagging if isinstance(operator, Lag) else UpsertMaterializer
        materializer: UpsertMaterializer = made(
            operator,
            self.opened.backend,
            record=self.stage.takes[0],
            layouts=layouts,
            watermark=task.watermark,
            watermarks=watermarks,
            processing_time=task.processing_time,
            ttl_since=task.state_ttl.lives(operator.name).since.get(HISTORY),
        )
        materializer.run(elements)
        self._keep_history(operator, materializer)
        sweeps = materializer.timer_changes()
        self.opened.write(materializer.timer_writes(sweeps))
        output.state(TIMERS, output.changelog.timers(sweeps))
        output.quarantine([_unmatched(operator, one) for one in materializer.unmatched])
        return materializer

    def _keep_state(self, process: KeyedProcess) -> None:
        opened, output = self.opened, self.output
        for store, changes in process.changes():
            opened.write(store.writes(changes))
            output.state(KEYED_STATE, output.changelog.values(store, changes))
            output.count(expired=store.expired)
        output.count(expired=process.cleanup.removed, expired_by_cleanup=process.cleanup.removed)
        opened.write(process.cleanup.writes())
        timers = process.timers.changes()
        opened.write(process.timers.writes(timers))
        output.state(TIMERS, output.changelog.timers(timers))
        output.report.timers_fired = process.timers.fired_until()

    @property
    def _owns_broadcast(self) -> bool:
        """Whether it is this task, of all, that stores what is the same in all of them."""
        return broadcast_groups(self.task.place.max_parallelism).first in self.key_groups

    def _broadcast(self) -> list[Element]:
        """The records that every task takes in."""
        tables = (read_parquet(path, self.task.place.storage) for path in self.task.broadcast)
        batches = (batch for table in tables for batch in table.to_batches())
        return sorted((one for batch in batches for one in elements_of(batch, self.stage.takes)), key=_order_of)

    def _broadcast_state(self, operator: Process) -> list[BroadcastRow]:
        place = self.task.place
        if not isinstance(operator.function, KeyedBroadcastFunction):
            return []
        version = place.versions[KEYED_STATE]
        return load_broadcast(place.job_folder, version, operator.name, place.max_parallelism, storage=place.storage)

    def _held_broadcast(self, operator: Process) -> list[BufferedRequest]:
        """Broadcast records that another task holds for all."""
        if self._owns_broadcast or not isinstance(operator.function, KeyedBroadcastFunction):
            return []
        stored = self._stored_requests(broadcast_groups(self.task.place.max_parallelism))
        return [request for _, request in stored if is_broadcast(request)]

    def _resumed(self) -> list[StoredRequest]:
        return self._stored_requests(self.key_groups)

    def _stored_requests(self, groups: KeyGroupRange) -> list[StoredRequest]:
        place = self.task.place
        if not self.task.resumes:
            return []
        version = place.versions[BUFFERED_REQUESTS]
        return load(place.job_folder, version, self.stage.name, groups, storage=place.storage)

    def _hold(self, resumed: Sequence[StoredRequest], held: Held) -> None:
        """Store what is held, in place of what was held before. What is held again as it was keeps its row.

        In a long outage all that comes after the first element that waits is held from run to run.
        """
        output = self.output
        again = {request for _, request in resumed} & set(held.requests)
        gone = [one for one in resumed if one.request not in again]
        new = numbered([one for one in held.requests if one not in again], self.task.place.checkpoint_id)
        output.state(BUFFERED_REQUESTS, output.changelog.buffered(gone, new))
        if held.cut is not None:
            output.report.cuts[self.stage.name] = held.cut
        output.report.held = len(held.requests)
        output.count(resumed=len(gone), held=len(held.requests))

    def _send_on(self, emitted: list[Emitted], side: str | None = None) -> None:
        Sender(self.output).send(self.stage.flows[side], emitted)

    def _materialized(self) -> SinkPlan:
        """The sink behind a materializer: the planner sees to it that there is one."""
        (use,) = self.stage.flows[None].uses
        return self.plan.sinks[cast("ToSink", use.to).sink]


_order_of = attrgetter("order")


def _upsert_key(operator: UpsertMaterialize, record: type[msgspec.Struct]) -> Callable[[bytes], str | None]:
    names = operator.upsert_key
    if names is None:
        return lambda _: None
    decode = msgspec.json.Decoder(record).decode

    def upsert_key(row: bytes) -> str:
        values = decode(row)  # as a record: a row that is stored may lack fields that have their defaults
        picked = [getattr(values, name) for name in names]
        return encode(picked[0] if len(picked) == 1 else picked).decode()

    return upsert_key


def _unmatched(operator: UpsertMaterialize, unmatched: Unmatched) -> QuarantineRow:
    element, row, rows = unmatched
    error = f"a retraction that matches none of the {rows} rows in its key's history{_dropped(operator)}"
    return operator.name, element.order.hex(), element.key_json.decode(), row.decode(), error


def _dropped(operator: UpsertMaterialize) -> str:
    """Why a row that once came may be there no more."""
    reasons = []
    if operator.ttl is not None:
        reasons.append(f"rows die after {format_duration(operator.ttl.ttl)}")
    if operator.on_conflict in {OnConflict.DO_NOTHING, OnConflict.DEDUPLICATE}:
        reasons.append(f"on_conflict={operator.on_conflict.value} keeps one row a key")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _counted(metrics: Counter[str]) -> dict[str, int]:
    return {("keyed_records" if name == "records" else name): value for name, value in metrics.items()}
