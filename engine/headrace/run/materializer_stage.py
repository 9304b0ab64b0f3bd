"""Materializer in one task: changes by primary key for a sink, and the history of rows behind them.

Rows of a task that a materializer needs, before records are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import Emit, LagNode, OnConflict, UpsertMaterialize
from headrace.config import format_duration
from headrace.execution.drain import seen_and_held
from headrace.execution.element import Element, Watermark, make_emitted
from headrace.log.declared import HISTORY_STATE
from headrace.materializer.identities import ChangedKeys, Mask, upsert_key_of
from headrace.materializer.lag import Lagging
from headrace.materializer.pass_through import EMITTED, PassThrough
from headrace.materializer.upsert_materializer import Unmatched, UpsertMaterializer
from headrace.names import counted
from headrace.plan.stages import KeyedStage, Plan, SinkPlan, ToSink
from headrace.records.order import FIRST_OUTPUT, record_order
from headrace.run.backend import TaskBackend
from headrace.run.messages import KeyedTask
from headrace.run.output import TaskOutput
from headrace.run.rows import ROWS_AT_ONCE, ColumnarRows
from headrace.run.transforms import refusing_unfit
from headrace.tables.changelog import QuarantineRow
from headrace.tables.schemas import MATERIALIZER_HISTORY, TIMERS

Needed = Callable[[ChangedKeys], Mask | None]
"""Function that returns which of all changes of a task have an effect; None: all may have one."""


def needed_rows(batches: Iterable[pa.RecordBatch], needed: Needed) -> Iterable[pa.RecordBatch]:
    """Return the rows in transit of a task that have an effect, in batches."""
    batches = list(batches)
    if not batches:
        return batches
    rows = pa.Table.from_batches(batches)
    mask = needed(_changed_keys(rows))
    return batches if mask is None else rows.filter(pa.array(mask)).to_batches(ROWS_AT_ONCE)


def _changed_keys(rows: pa.Table) -> ChangedKeys:
    """Return the changes of rows in transit."""
    keys = rows["key"].dictionary_encode().chunks  # all with the same keys
    numbers = np.concatenate([part.indices.to_numpy() for part in keys])
    return ChangedKeys(keys[-1].dictionary.to_pylist(), numbers, rows["kind"].to_numpy())


Changes = Callable[[Needed], Iterable[Sequence[Element]]]
"""Function that returns the changes of a task in arrival order; it may leave out those that are not needed."""


@dataclass(frozen=True, slots=True)
class MaterializerWork:
    """Work of one materializer with its open backend and its output."""

    task: KeyedTask
    plan: Plan
    stage: KeyedStage
    opened: TaskBackend
    output: TaskOutput

    def pass_columns(self, operator: UpsertMaterialize, batches: Sequence[pa.RecordBatch]) -> bool:
        """Pass all changes of a task on as columns where no history is needed; return False, and do nothing, where records have to be made."""
        if operator.is_needed or not batches:
            return False
        try:
            rows = pa.concat_batches(batches)
        except pa.ArrowInvalid:  # 2 GiB of text, more than a column can hold
            return False
        operator = self._emitting(operator)
        materializer = self._without_history(operator)
        mask = materializer.pass_columns(_changed_keys(pa.Table.from_batches([rows])))
        emitted = rows if mask is None else rows.filter(pa.array(mask))
        orders = pc.binary_join_element_wise(emitted["order"], FIRST_OUTPUT, b"")
        kinds = pa.array([*map(int, EMITTED)], pa.int32()).take(emitted["kind"])
        columns = ColumnarRows(self.stage.takes[0], orders, emitted["timestamp"], kinds, emitted["in0"])
        if not self.output.changed_columns(self._materialized(), columns):
            return False
        self._keep_history(operator, materializer)
        self.output.count_keyed(materializer.metrics)
        return True

    def _emitting(self, operator: UpsertMaterialize) -> UpsertMaterialize:
        """Return the operator with the net change of each key where the sink has one row for it."""
        merges = self.output.merges_into(self._materialized().name)
        return replace(operator, emit=Emit.NET_CHANGE) if merges else operator

    def run(self, operator: UpsertMaterialize, changes: Changes) -> None:
        """Materialize changes up to the task's cut."""
        sink, operator = self._materialized(), self._emitting(operator)
        materializer = self._with_history(operator) if operator.is_needed else self._without_history(operator)
        materializer.run(changes(materializer.needed))
        self._keep_history(operator, materializer)
        if isinstance(materializer, UpsertMaterializer):
            self._keep_sweeps_and_unmatched(operator, materializer)
        self.output.count_keyed(materializer.metrics)
        decode = msgspec.json.Decoder(self.stage.record).decode
        rows = [make_emitted((order, 0, kind, decode(raw))) for order, kind, _, raw in materializer.outputs()]
        with refusing_unfit(operator.name, rows, sink.name):
            self.output.changes(sink, rows)

    def _without_history(self, operator: UpsertMaterialize) -> PassThrough:
        return PassThrough(operator, self.opened.backend, record=self.stage.takes[0], from_columns=True)

    def _keep_history(self, operator: UpsertMaterialize, materializer: UpsertMaterializer | PassThrough) -> None:
        changes = materializer.changes()
        self.opened.write(materializer.writes())
        self.output.state(
            MATERIALIZER_HISTORY,
            self.output.changelog.history(changes, upsert_key_of(operator.upsert_key, self.stage.takes[0])),
        )

    def _with_history(self, operator: UpsertMaterialize) -> UpsertMaterializer:
        task = self.task
        watermarks, _ = seen_and_held([Watermark(record_order(at), time) for at, time in task.watermarks], task.cut)
        layouts = task.upsert_materialize.layouts(operator.strategy, task.batch.backend)
        materializer_class: Callable[..., UpsertMaterializer] = (
            Lagging if isinstance(operator, LagNode) else UpsertMaterializer
        )
        return materializer_class(
            operator,
            self.opened.backend,
            record=self.stage.takes[0],
            layouts=layouts,
            watermark=task.watermark,
            watermarks=watermarks,
            processing_time=task.processing_time,
            ttl_since=task.state_ttl.lifetimes(operator.name).since.get(HISTORY_STATE),
            from_columns=True,
        )

    def _keep_sweeps_and_unmatched(self, operator: UpsertMaterialize, materializer: UpsertMaterializer) -> None:
        output = self.output
        sweeps = materializer.timer_changes()
        self.opened.write(materializer.timer_writes(sweeps))
        output.state(TIMERS, output.changelog.timers(sweeps))
        output.quarantine([_unmatched(operator, unmatched) for unmatched in materializer.unmatched])

    def _materialized(self) -> SinkPlan:
        """Return the sink behind a materializer. The planner guarantees one."""
        (use,) = self.stage.flows[None].uses
        return self.plan.sinks[cast("ToSink", use.to).sink]


def _unmatched(operator: UpsertMaterialize, unmatched: Unmatched) -> QuarantineRow:
    element, row, rows = unmatched
    error = f"a retraction that matches nothing in its key's history of {counted(rows, 'row')}{_dropped(operator)}"
    return QuarantineRow(
        operator.name, element.order.hex(), element.key_json.decode(), row.decode(), error, "retraction"
    )


def _dropped(operator: UpsertMaterialize) -> str:
    """Return possible reasons why a row is no longer in the history, as part of a sentence."""
    reasons = []
    if operator.ttl is not None:
        reasons.append(f"rows die after {format_duration(operator.ttl.ttl)}")
    if operator.on_conflict in {OnConflict.DO_NOTHING, OnConflict.DEDUPLICATE}:
        reasons.append(f"on_conflict={operator.on_conflict.value} keeps one row a key")
    return f" ({'; '.join(reasons)})" if reasons else ""
