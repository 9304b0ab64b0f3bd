"""A run that stops anywhere and is resumed, at any parallelism, gives the same results as an uninterrupted run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import KeyedCoProcessFunction, KeyedProcessFunction, Process, ValueState, declare
from headrace.api.functions import function_types
from headrace.errors import StateSchemaError
from headrace.execution.drain import seen_and_held
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions
from headrace.records.order import record_order
from headrace.state.backend import GROUPED_PREFIX, VALUE_PREFIX, named
from headrace.state.codec import encode
from headrace.state.key_groups import key_group, key_group_range
from headrace.state.rocksdb import RocksDbBackend
from tests.unit.support.inputs import broadcast_apart, owned_by
from tests.unit.support.micro_batches import GROUPS, Job, owns_broadcast
from tests.unit.support.steps import CoSteps, OtherStep, RuledSteps, Step, Steps, step_lists, steps_operator

SMALL = AsyncStateOptions(in_flight_records_limit=3, buffer_size=2)


@dataclass
class StoppingJob(Job):
    """A job whose tasks stop at the positions in `stops`, and whose runs begin with the held records."""

    stops: list = field(default_factory=list)
    held: dict = field(default_factory=dict)
    repeated: tuple = ()
    cut: bytes | None = None

    def take(self, steps, parallelism=1):
        """Run one micro-batch over the held records and `steps`."""
        elements = [self.element(record_order(self.ordinal + n), step.at, step) for n, step in enumerate(steps)]
        before, self.cut = self.watermark_seen, None
        watermarks = [*self.repeated, *self._watermarks(steps)]
        for stage in range(len(self.operators)):
            elements = self._stage(stage, sorted(elements), before, watermarks, parallelism)
        self.sent += elements
        seen, self.repeated = seen_and_held(watermarks, self.cut)
        self.watermark_seen = seen[-1].timestamp if seen else before
        return self

    watermark_seen: int | None = None

    def _stage(self, stage, elements, before, watermarks, parallelism):
        sent, held, cut = [], [], self.cut
        resumed, self.backends = self.held.pop(stage, []), self.rescaled(stage, parallelism)
        rules = self.rules(stage, parallelism)
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
                options=SMALL,
                owns_broadcast=owns_broadcast(groups),
            )
            process.broadcast.load(rules)
            left = process.run(
                [owned],
                watermarks,
                resumed=owned_by(groups, GROUPS, resumed),
                broadcast=broadcast,
                cut=cut,
                stop=lambda: bool(self.stops) and self.stops.pop(),
            )
            self.keep(stage, groups, process)
            held += left.requests
            self.cut = min((place for place in (self.cut, left.cut) if place is not None), default=None)
            sent += [self.element(out.order, out.timestamp, out.record) for out in process.emitted]
            self.sides += [(stage, out.order, encode(out.record)) for out in process.side_outputs.get("thirds", ())]
        self.held[stage] = held
        return sent

    def rescaled(self, stage, parallelism):
        """The backends of this stage's tasks, over the state of all of them."""
        mine = {key: backend for key, backend in self.backends.items() if key[0] == stage}
        others = {key: backend for key, backend in self.backends.items() if key[0] != stage}
        wanted = {(stage, key_group_range(task, GROUPS, parallelism)) for task in range(parallelism)}
        if not mine or set(mine) == wanted:
            return self.backends
        entries = [entry for backend in mine.values() for entry in backend.items()]
        for key in wanted:
            others[key] = self.new_backend()
            # Every task gets all records: it looks only at its own keys, but timers of other keys would fire.
            others[key].write_batch([e for e in entries if key_group(_key_of(e[0]), GROUPS) in key[1]])
        return others


def _key_of(entry):
    return named(entry).key_json if entry[:1] in {VALUE_PREFIX, GROUPED_PREFIX} else entry[10:]


def operators(count, function=Steps):
    return [steps_operator(f"steps_{number}", function) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2])
@given(
    steps=step_lists(),
    cuts=st.lists(st.integers(0, 20), max_size=2),
    stops=st.lists(st.booleans(), max_size=12),
    parallelism=st.sampled_from([(1, 1, 1, 1), (2, 1, 7, 2), (7, 2, 1, 1)]),
    function=st.sampled_from([Steps, CoSteps, RuledSteps]),
)
def test_stopping_and_resuming_changes_nothing(backends, count, steps, cuts, stops, parallelism, function):
    places = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    with backends.lent() as new:
        whole = Job(operators(count, function), new).take(steps)
        job = StoppingJob(operators(count, function), new, stops=list(stops))
        for (start, end), tasks in zip(itertools.pairwise(places), itertools.cycle(parallelism)):
            job.take(steps[start:end], tasks)
        while any(job.held.values()) or job.repeated:
            job.take([], 1)
        assert sorted(job.sent) == sorted(whole.sent)
        assert sorted(job.sides) == sorted(whole.sides)
        assert {(stage, *item) for (stage, _), backend in job.backends.items() for item in backend.items()} == {
            (stage, *item) for (stage, _), backend in whole.backends.items() for item in backend.items()
        }
        assert job.watermark_seen == whole.watermark


class Totals(KeyedProcessFunction[Step, Step]):
    """Resumes in declared blocks."""

    total = ValueState("total", int)
    most = ValueState("most", int)

    async def process(self, step, ctx, /):
        ctx.collect(Step("begun", step.at))
        self.total.value().then_accept(self.add)

    @declare("add")
    def add(self, total, step, ctx, /):
        total = (total or 0) + step.add
        self.total.update(total)
        ctx.collect(Step("added", step.at, total))
        self.most.value().then_accept(self.compare)

    @declare("compare")
    def compare(self, most, step, ctx, /):
        if most is None or step.add > most:
            self.most.update(step.add)
        ctx.collect(Step("compared", step.at, most or 0))


class Both(KeyedCoProcessFunction[Step, OtherStep, Step]):
    """Resumes in declared blocks that name the type of their record."""

    total = ValueState("total", int)

    async def process1(self, step, ctx, /):
        self.total.value().then_accept(self.add)

    async def process2(self, step, ctx, /):
        self.total.value().then_accept(self.take)

    @declare("add")
    def add(self, total, step, ctx, /):
        self.total.update((total or 0) + step.add)
        ctx.collect(Step(type(step).__name__, step.at, total or 0))

    @declare("take")
    def take(self, total, step, ctx, /):
        self.total.update((total or 0) - step.add)
        ctx.collect(Step(type(step).__name__, step.at, total or 0))


def element(ordinal, key, add, kind=Step):
    step = kind(key, ordinal, add)
    return Element(record_order(ordinal), ordinal, 0, encode(key), step, int(kind is OtherStep))


ELEMENTS = [element(n, key, add) for n, (key, add) in enumerate([("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)], 1)]


def task_over(backend, function=None):
    function = function or Totals()
    return KeyedProcess(
        Process("totals", "key", function, ()),
        backend,
        records=function_types(function)[0],
        watermark=None,
        last_watermark=None,
        options=AsyncStateOptions(buffer_size=100),
    )


@pytest.fixture
def new_rocksdb(tmp_path):
    """Open empty databases; all are closed in the end."""
    opened = []

    def new():
        opened.append(RocksDbBackend(tmp_path / str(len(opened)), inline_reads_below=0))
        return opened[-1]

    yield new
    for backend in opened:
        backend.close()


@pytest.fixture
def unread(monkeypatch):
    """Tasks without read-ahead: the first access to a key's state waits, on RocksDB."""
    monkeypatch.setattr(KeyedProcess, "_prefetch", lambda *_: None)


def keep(backend, process):
    for store in process.stores:
        backend.write_batch(store.writes(list(store.changes())))


def emitted_counts(process):
    return [(out.order, out.record.key, out.record.add) for out in process.emitted]


def test_record_stays_in_its_block_over_runs(new_rocksdb, unread):
    backend, other = new_rocksdb(), new_rocksdb()
    straight = task_over(other)
    straight.run([ELEMENTS], [])

    first = task_over(backend)
    held = first.run([ELEMENTS[:4], ELEMENTS[4:]], [], stop=lambda: True)
    #   a1 b2 a3 c4 | b5        a1, b2 and c4 have begun and wait at "add"; a3 waits for a1, b5 was not taken in
    assert [(request.block_id, request.index) for request in held.requests] == [
        ("add", 1),
        ("add", 1),
        ("", 0),
        ("add", 1),
        ("", 0),
    ]
    assert held.cut == record_order(1)
    assert first.metrics["records"] == 3
    keep(backend, first)
    second = task_over(backend)
    assert second.run([], [], resumed=held.requests).requests == []
    assert sorted(emitted_counts(first) + emitted_counts(second)) == emitted_counts(straight)
    keep(backend, second)
    keep(other, straight)
    assert sorted(backend.items()) == sorted(other.items())


def test_held_records_resume_in_their_inputs_block(new_rocksdb, unread):
    kinds = [Step, OtherStep, OtherStep, Step, OtherStep]
    elements = [element(n, key, n, kind) for n, (key, kind) in enumerate(zip("abaca", kinds, strict=True), 1)]
    straight = task_over(new_rocksdb(), Both())
    straight.run([elements], [])
    backend = new_rocksdb()
    first = task_over(backend, Both())
    held = first.run([elements[:4], elements[4:]], [], stop=lambda: True)
    #   a1 b2 a3 c4 | a5        a1, b2 and c4 have begun and wait at their blocks
    assert [(request.block_id, request.input) for request in held.requests] == [
        ("add", 0),
        ("take", 1),
        ("", 1),
        ("add", 0),
        ("", 1),
    ]
    keep(backend, first)
    second = task_over(backend, Both())
    second.run([], [], resumed=held.requests)
    assert emitted_counts(first) + emitted_counts(second) == emitted_counts(straight)
    assert [key for _, key, _ in emitted_counts(second)] == [kind.__name__ for kind in kinds]


def test_missing_block_is_a_named_error(new_rocksdb, unread):
    class Renamed(Totals):
        add = compare = None
        _only = declare("addition")(lambda *_: None)

    backend = new_rocksdb()
    held = task_over(backend).run([ELEMENTS], [], stop=lambda: True)
    with pytest.raises(StateSchemaError, match=r"waits at block 'add' for state 'total'.*blocks declared: addition"):
        task_over(backend, Renamed()).run([], [], resumed=held.requests)


def test_awaiting_code_is_finished_not_held(new_rocksdb, unread):
    class Awaits(Totals):
        async def process(self, step, ctx, /):
            total = await self.total.value()
            ctx.collect(Step("added", step.at, (total or 0) + step.add))

    process = task_over(new_rocksdb(), Awaits())
    held = process.run([ELEMENTS], [], stop=lambda: True)
    assert [request.order for request in held.requests] == [record_order(3), record_order(5)]
    assert {request.block_id for request in held.requests} == {""}
    assert [key for _, key, _ in emitted_counts(process)] == ["added"] * 3


def test_cut_finishes_earlier_records_and_holds_later(new_rocksdb):
    """At a cut, all records before it are done, and all records after it are held."""
    process = task_over(new_rocksdb())
    watermarks = [Watermark(record_order(2), 1), Watermark(record_order(5), 4)]
    held = process.run([ELEMENTS], watermarks, cut=record_order(4))
    assert [request.order for request in held.requests] == [record_order(4), record_order(5)]
    assert held.cut == record_order(4)
    assert seen_and_held(watermarks, held.cut) == ((watermarks[0],), (watermarks[1],))


def test_records_count_once_however_often_runs_stop(new_rocksdb):
    backend = new_rocksdb()
    first = KeyedProcess(
        Process("totals", "key", Totals(), ()), backend, records=(Step,), watermark=99, last_watermark=None
    )
    held = first.run([ELEMENTS[:2], ELEMENTS[2:]], [], stop=lambda: True)
    second = KeyedProcess(
        Process("totals", "key", Totals(), ()), backend, records=(Step,), watermark=99, last_watermark=None
    )
    second.run([], [], resumed=held.requests)
    assert first.metrics + second.metrics == {"records": 5, "late": 5}


def test_held_records_read_no_state(new_rocksdb, monkeypatch):
    backend = new_rocksdb()
    asked = []

    def nothing_found(entries):
        asked.extend(entries)
        return [None] * len(entries)

    monkeypatch.setattr(backend, "get_many", nothing_found)
    task_over(backend).run([ELEMENTS[:2], ELEMENTS[2:]], [], stop=lambda: True)
    assert {entry[-3:] for entry in asked} == {b'"a"', b'"b"'}
