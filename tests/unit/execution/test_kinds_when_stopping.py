"""A stopping run holds records that wait for a list or an accumulator, and finishes records that wait for single entries."""

from __future__ import annotations

import pytest

from headrace import KeyedProcessFunction, ListState, MapState, Process, ReducingState, ValueState, declare
from headrace.errors import StateSchemaError
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions
from headrace.state.rocksdb import RocksDbBackend
from tests.unit.execution.test_fast_drain import ELEMENTS, emitted_counts, keep
from tests.unit.support.steps import Step


class Collects(KeyedProcessFunction[Step, Step]):
    """Adds to a list, and resumes in blocks after reading the list and a sum."""

    steps = ListState("steps", int)
    total = ReducingState("total", int, lambda one, other: one + other)

    async def process(self, step, ctx, /):
        self.steps.get().then_accept(self.look)

    @declare("look")
    def look(self, before, step, ctx, /):
        self.steps.add_all([step.add, -step.add])
        ctx.collect(Step(f"{before}", step.at))
        self.total.add(step.add)
        self.total.get().then_accept(self.tell)

    @declare("tell")
    def tell(self, total, step, ctx, /):
        self.steps.add(total)
        ctx.collect(Step("total", step.at, total))


class Looks(KeyedProcessFunction[Step, Step]):
    """Waits for an entry of a map, and for a value in a namespace."""

    map = MapState("map", str, int)
    value = ValueState("value", int)

    async def process(self, step, ctx, /):
        if step.key == "a":
            self.map.get("x").then_accept(self.tell)
        else:
            self.value.namespace("w").value().then_accept(self.tell)

    @declare("tell")
    def tell(self, values, step, ctx, /):
        ctx.collect(Step("told", step.at, -1 if values is None else values))


@pytest.fixture
def task_over(tmp_path, monkeypatch):
    """Return tasks without read-ahead over a RocksDB of this name, which never reads inline."""
    monkeypatch.setattr(KeyedProcess, "_prefetch", lambda *_: None)
    opened = {}

    def make(name, function):
        if name not in opened:
            opened[name] = RocksDbBackend(tmp_path / name, inline_reads_below=0)
        return opened[name], KeyedProcess(
            Process("collects", "key", function, ()),
            opened[name],
            records=(Step,),
            watermark=None,
            last_watermark=None,
            options=AsyncStateOptions(buffer_size=100),
        )

    yield make
    for backend in opened.values():
        backend.close()


def test_list_and_sum_waiters_resume_next_run(task_over):
    """A record that waits for a list or a sum resumes in the next run."""
    whole, straight = task_over("straight", Collects())
    straight.run([ELEMENTS], [])
    keep(whole, straight)
    backend, task = task_over("stopping", Collects())
    held = task.run([ELEMENTS[:4], ELEMENTS[4:]], [], stop=lambda: True).requests
    assert [(request.block_id, request.state) for request in held] == [
        ("look", "steps"),
        ("look", "steps"),
        ("", ""),
        ("look", "steps"),
        ("", ""),
    ]
    emitted = emitted_counts(task)
    keep(backend, task)
    while held:
        _, task = task_over("stopping", Collects())
        held = task.run([], [], resumed=held).requests
        keep(backend, task)
        emitted += emitted_counts(task)
    assert sorted(emitted) == emitted_counts(straight)
    assert sorted(backend.items()) == sorted(whole.items())


def test_entry_and_namespace_waiters_are_finished(task_over):
    """A record that waits for one entry, or in a namespace, is finished."""
    _, task = task_over("looking", Looks())
    held = task.run([ELEMENTS[:2], ELEMENTS[2:]], [], stop=lambda: True).requests
    assert [request.block_id for request in held] == ["", "", ""]
    assert [what for _, what, _ in emitted_counts(task)] == ["told", "told"]


def test_list_changed_to_map_cannot_resume(task_over):
    """A record that was reading a list cannot resume after the state became a map."""

    class Anew(Collects):
        steps = MapState("steps", str, int)

    _, task = task_over("collecting", Collects())
    held = task.run([ELEMENTS], [], stop=lambda: True).requests
    _, task = task_over("collecting", Anew())
    with pytest.raises(StateSchemaError, match="block 'look' waits for what state 'steps' of operator 'collects' had"):
        task.run([], [], resumed=held)
