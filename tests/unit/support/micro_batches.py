"""Runs chains of keyed operators as a job does, without Spark: slices, watermarks, key groups, carried-over state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.api.functions import function_types
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.records.order import record_order
from headrace.records.watermarks import Bucket, advance
from headrace.state.broadcast import BROADCAST_KEY
from headrace.state.codec import encode
from headrace.state.key_groups import key_group, key_group_range
from headrace.tables.schemas import STATE_TABLES
from tests.unit.support.inputs import broadcast_apart, element_for, owned_by, stored_broadcast

GROUPS = 16
BUCKET = 4
LAG = 6


@dataclass
class Job:
    """Operators, their state, and all their output so far."""

    operators: Sequence
    new_backend: Callable
    batch: int = 5
    ordinal: int = 0
    bucket: Bucket = field(default_factory=Bucket)
    watermark: int | None = None
    sent: list = field(default_factory=list)
    sides: list = field(default_factory=list)
    metrics: Counter = field(default_factory=Counter)
    backends: dict = field(default_factory=dict)

    def take(self, steps, parallelism=1):
        """One micro-batch."""
        elements = [self.element(record_order(self.ordinal + n), step.at, step) for n, step in enumerate(steps)]
        before, watermarks = self.watermark, self._watermarks(steps)
        for stage in range(len(self.operators)):
            elements = self._stage(stage, sorted(elements), before, watermarks, parallelism)
        self.sent += elements
        return self

    def element(self, order, timestamp, record):
        """Return a record as an element for any of the operators, whose inputs are alike."""
        return element_for(self.operators[0].function, order, timestamp, record)

    def backend(self, stage, groups):
        """Return the state of one stage and range of key groups."""
        if (stage, groups) not in self.backends:
            self.backends[stage, groups] = self.new_backend()
        return self.backends[stage, groups]

    def rules(self, stage, parallelism):
        """Return the broadcast state of a stage before a micro-batch, from the task that owns it."""
        ranges = [key_group_range(task, GROUPS, parallelism) for task in range(parallelism)]
        owner = next(groups for groups in ranges if owns_broadcast(groups))
        return stored_broadcast(self.backend(stage, owner).items())

    def keep(self, stage, groups, process):
        """Store the changes of a task."""
        backend = self.backend(stage, groups)
        for store, changes in changes_of(process):
            backend.write_batch(store.writes(changes))
        backend.write_batch(process.timers.writes(process.timers.changes()))

    def outcome(self):
        """Return everything that must not depend on the way of running."""
        entries = {(stage, *item) for (stage, _), backend in self.backends.items() for item in backend.items()}
        return sorted(self.sent), sorted(self.sides), entries, self.metrics

    def _watermarks(self, steps):
        seen = {}
        for place, step in enumerate(steps, self.ordinal):
            seen[place // BUCKET] = max(step.at, seen.get(place // BUCKET, step.at))
        self.ordinal += len(steps)
        self.bucket, result = advance(self.bucket, seen, len(steps), size=BUCKET, lag=LAG, watermark=self.watermark)
        if result:
            self.watermark = result[-1][1]
        return [Watermark(record_order(ordinal), time) for ordinal, time in result]

    def _stage(self, stage, elements, before, watermarks, parallelism):
        sent, rules = [], self.rules(stage, parallelism)
        for task in range(parallelism):
            groups = key_group_range(task, GROUPS, parallelism)
            owned, broadcast = broadcast_apart(owned_by(groups, GROUPS, elements))
            process = KeyedProcess(
                self.operators[stage],
                self.backend(stage, groups),
                records=function_types(self.operators[stage].function)[0],
                watermark=before,
                last_watermark=watermarks[-1].timestamp if watermarks else None,
                stage=stage,
                owns_broadcast=owns_broadcast(groups),
            )
            process.broadcast.load(rules)
            batches = (owned[n : n + self.batch] for n in range(0, len(owned), self.batch))
            process.run(batches, watermarks, broadcast=broadcast)
            self.keep(stage, groups, process)
            sent += [self.element(out.order, out.timestamp, out.record) for out in process.emitted]
            self.sides += [(stage, out.order, encode(out.record)) for out in process.side_outputs["thirds"]]
            self.metrics += process.metrics + Counter(fired=process.timers.fired)
            self.metrics["expired"] += sum(store.expired for store in process.stores)
        return sent


def owns_broadcast(groups):
    return key_group(BROADCAST_KEY, GROUPS) in groups


def changes_of(process):
    """Return the changes of a task, without TTL."""
    return [*((store, list(store.changes())) for store in process.stores), *process.broadcast.changes()]


def no_rows():
    """Return empty state tables."""
    return {name: [table.schema.empty_table()] for name, table in STATE_TABLES.items()}


def element_of(order, timestamp, record):
    return Element(order, timestamp, 0, encode(record.key), record)
