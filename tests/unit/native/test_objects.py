"""The hot objects, in Python and in C: each test runs on both."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from typing import Any, NamedTuple

import msgspec
import pytest

from headrace import native
from headrace.native import objects as in_python
from headrace.records.order import output_order
from headrace.state.backend import stored_value

KEY = b'"a"'
BOTH = ["Python", pytest.param("C", marks=pytest.mark.skipif(native.runs_in != "C", reason="not compiled"))]


@pytest.fixture(params=BOTH)
def objects(request):
    return in_python if request.param == "Python" else sys.modules["headrace.native._objects"]


class Emitted(NamedTuple):
    order: bytes
    timestamp: int
    kind: object
    record: object


class Line(NamedTuple):
    text: str


class Other(NamedTuple):
    text: str


def record_classes(objects: Any):
    """Return classes of what a record makes, derived from the objects, as those of the engine are."""

    class Task(objects.RunningTask):
        @staticmethod
        async def awaiting(awaitable):
            await awaitable

        def run_behind(self, earlier, context):
            self.behind.append((earlier, context))

        def end_of_code(self, context):
            self.ended.append(context)

    class Future(objects.StateFuture):
        __slots__ = ()

        def __init__(self, answer, task):
            self.done, self.answer, self._task = True, answer, task

    class Outputs(objects.Outputs):
        def taken(self, record, kind):
            if type(record) is not Other:
                raise TypeError(record)
            return Line(f"{record.text} {kind}")

        def time_of(self, timestamp):
            return timestamp + 1000

    class Context(objects.ProcessContext):
        __slots__ = ()

    return Task, Future, Outputs, Context


def state_classes(objects: Any):
    """Return classes of state, derived from the objects."""

    class Store(objects.ValueCells):
        def may_act(self, context):
            return context.owns_key and id(context) not in self._loading

        def read_value(self):
            return "read"

        def write_value(self, value, ttl):
            return "written", value, ttl

        def alive(self, context, cell):
            return f"{cell.value} alive"

        def set(self, context, cell, value):
            cell.value = f"{value} set"

        def answer(self, value):
            return value if self.blocking else self._done if value is None else type(self._done)(value, self._task)

    class Handle(objects.CachedHandle):
        def add_value(self, value, ttl):
            return "added", value, ttl

        def read_result(self):
            return "read"

    return Store, Handle


class World:
    """One object of each class."""

    def __init__(self, objects):
        task, self.Future, outputs, self.Context = record_classes(objects)
        store, handle = state_classes(objects)
        self.objects, self.task, self.outputs = objects, task(), outputs(Emitted, "insert")
        self.task.ended, self.task.behind = [], []
        self.outputs.main, self.outputs.type = [], Line
        self.context = self.task.context = self.context_of()
        self.store, self.handle = store(), handle()
        self.store._task, self.store._ttl, self.store._cells, self.store._loading = self.task, None, {}, {}
        self.store._ahead, self.store._decode = {}, msgspec.json.decode
        self.store.blocking, self.store.hits, self.store._done = False, 0, self.Future(None, self.task)
        self.store._add, self.store._get_result = (lambda value, total: total + value), str
        self.handle._store, self.handle._suffix = self.store, b""

    def context_of(self, key=KEY):
        context = self.Context(self.outputs, "timers", key, None, "record")
        context.order, context.timestamp, context.owns_key = b"place", 7, True
        return context

    def cell(self, value, name=KEY):
        cell = self.store._cells[name] = self.objects.Cell(value, 1, stored=True)
        return cell

    def loop(self, *functions, due=(), before=None, not_plain=None):
        return self.objects.RecordLoop(
            self.task, self.Context, self.outputs, "timers", functions, ("+I", "-D"), due, before, not_plain
        )


@pytest.fixture
def world(objects):
    return World(objects)


def element(record, timestamp=10, kind=0, key=KEY, input_=0):
    return b"place", timestamp, kind, key, record, input_


def run(code):
    """Return what the code of a coroutine returns; it must not suspend."""
    with pytest.raises(StopIteration) as stopped:
        code.send(None)
    return stopped.value.value


async def wait(future):
    return await future


# ---------------------------------------------------------------------------------------------------------- StateFuture


@pytest.mark.parametrize("answer", [None, 5, (1, 2), StopIteration(5), ValueError("kept")])
def test_await_of_a_complete_future_goes_on(world, answer):
    assert run(wait(world.Future(answer, world.task))) is answer


def test_await_suspends_until_the_answer_arrives(world):
    future = world.Future(None, world.task)
    future.done = False
    code = wait(future)
    assert code.send(None) is future
    future.done, future.answer = True, 5
    assert run(code) == 5


@pytest.mark.parametrize("context", [None, "plain"])
def test_await_suspends_while_callbacks_wait(world, context):
    if context == "plain":
        world.task.context = world.objects.RecordContext(KEY, None)
    world.task.context.callbacks = deque([1])
    future = world.Future(5, world.task)
    code = wait(future)
    assert code.send(None) is future
    assert run(code) == 5


def test_future_of_any_task_can_be_awaited(world):
    class Idle:
        callbacks = ()

        @property
        def context(self):
            return self

    assert run(wait(world.Future(5, Idle()))) == 5


def test_future_without_answer_raises(world):
    future = world.Future(5, world.task)
    del future.answer
    with pytest.raises(AttributeError, match="answer"):
        wait(future).send(None)
    del future._task
    with pytest.raises(AttributeError, match="_task"):
        wait(future).send(None)


def test_error_thrown_into_an_await_arrives(world):
    future = world.Future(None, world.task)
    future.done = False
    code = wait(future)
    code.send(None)
    with pytest.raises(LookupError, match="thrown"):
        code.throw(LookupError("thrown"))


def test_many_futures_are_awaited_at_once(world):
    """Memory of ended futures and waiters serves others only."""
    futures = [world.Future(number, world.task) for number in range(200)]
    for future in futures:
        future.done = False
    codes = [wait(future) for future in futures]
    assert [code.send(None) for code in codes] == futures
    codes[3].close()
    for future in futures:
        future.done = True
    assert [run(code) for code in codes[:3] + codes[4:]] == [number for number in range(200) if number != 3]


def test_long_chain_of_futures_ends(world):
    future = world.Future(0, world.task)
    for number in range(300_000):
        following = world.Future(number, world.task)
        following._source = future
        future = following
    following = None
    del future
    assert world.Future(5, world.task).answer == 5


# ---------------------------------------------------------------------------------------------------------- Cell, contexts


def test_cell_has_its_fields(objects):
    cell = objects.Cell("value", 5, stored=None)
    assert (cell.value, cell.stamp, cell.own_ttl, cell.stored, cell.dirty) == ("value", 5, 0, None, False)
    cell = objects.Cell("value", 5, 6, stored=True, dirty=True)
    assert (cell.own_ttl, cell.stored, cell.dirty) == (6, True, True)
    cell.value = None
    assert cell.value is None
    for arguments in ((), ("value",), ("value", 5, 6, True)):
        with pytest.raises(TypeError):
            objects.Cell(*arguments)
    with pytest.raises(TypeError, match="stored"):
        objects.Cell("value", 5)
    with pytest.raises(AttributeError):
        cell.other = 5


def test_contexts_begin_without_a_place(world):
    record = world.objects.RecordContext(KEY, "record")
    context = world.Context(world.outputs, "timers", KEY, len, "record", "timer")
    for one in (record, context):
        assert (one.key_json, one.record, one.references, one.owns_key) == (KEY, "record", 0, False)
        assert (one.epoch, one.due_in, one.call, one.callbacks, one.overdue) == (None,) * 5
        assert not hasattr(one, "awaited")
    assert (context.function, context.timer, context.row_kind, context.index) == (len, "timer", "insert", 0)
    assert not any(hasattr(context, name) for name in ("order", "timestamp", "watermark", "expired_until"))


def test_derived_context_may_have_more_fields(world):
    base: Any = world.Context

    class More(base):
        __slots__ = ("more",)

    for number in range(100):
        context = More(world.outputs, "timers", KEY, None, number)
        context.more = number
        assert (context.more, context.record) == (number, number)
    assert not hasattr(world.context_of(), "more")


# ---------------------------------------------------------------------------------------------------------- collect


def test_collect_emits_in_order(world):
    for text in "abc":
        world.context.collect(Line(text))
    assert world.outputs.main == [
        Emitted(output_order(b"place", place), 7, "insert", Line(text)) for place, text in enumerate("abc")
    ]
    assert {type(emitted) for emitted in world.outputs.main} == {Emitted}


@pytest.mark.parametrize("index", [0, 1, 255, 256, 70_000, 2**32 - 1])
def test_place_of_an_output_is_that_of_orders(world, index):
    world.context.index = index
    world.context.collect(Line("a"))
    assert (world.outputs.main[0].order, world.context.index) == (output_order(b"place", index), index + 1)


@pytest.mark.parametrize("index", [2**32, 2**70, -1])
def test_too_many_outputs_are_refused(world, index):
    world.context.index = index
    with pytest.raises(OverflowError):
        world.context.collect(Line("a"))
    assert (world.outputs.main, world.context.index) == ([], index)


def test_collect_takes_kind_and_time(world):
    collect = world.context.collect
    collect(Line("a"), "kind")
    collect(Line("a"), kind="kind")
    collect(Line("a"), timestamp=5)
    collect(Line("a"), "kind", timestamp=5)
    collect(Line("a"), "kind", 5)
    collect(Line("a"), None, None)
    assert [(out.kind, out.timestamp) for out in world.outputs.main] == [
        ("kind", 7), ("kind", 7), ("insert", 1005), ("kind", 1005), ("kind", 1005), ("insert", 7)
    ]  # fmt: skip


def test_outputs_take_other_records(world):
    world.context.collect(Other("a"), "kind")
    assert world.outputs.main[0].record == Line("a kind")
    with pytest.raises(TypeError):
        world.context.collect("a")
    assert len(world.outputs.main) == world.context.index == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((), {}), ((1, 2, 3, 4), {}), ((1,), {"other": 1}), ((1, 2), {"kind": 2}), ((), {"record": 1})],
)
def test_collect_refuses_wrong_arguments(world, arguments, named):
    with pytest.raises(TypeError):
        world.context.collect(*arguments, **named)


def test_emitted_records_must_be_tuples(objects):
    if objects is in_python:
        pytest.skip("nothing depends on it there")
    with pytest.raises(TypeError, match="tuple without more fields"):
        objects.Outputs(Line("a").__class__.__mro__[-1], "insert")


# ---------------------------------------------------------------------------------------------------------- ValueCells


def test_cached_value_is_answered_at_once(world):
    cell = world.cell(5)
    future = world.store.value()
    assert (type(future), run(wait(future)), world.store.hits) == (world.Future, 5, 1)
    cell.value = None
    assert world.store.value() is world.store._done


def test_cached_value_is_updated_at_once(world):
    cell = world.cell(5)
    assert world.store.update(6) is world.store._done
    assert (cell.value, cell.stamp, cell.own_ttl, cell.dirty) == (6, 7, 0, True)


def test_plain_code_gets_the_value(world):
    world.store.blocking = True
    cell = world.cell(5)
    assert (world.store.value(), world.store.update(6), cell.value, world.store.hits) == (5, None, 6, 0)


def test_value_with_ttl_is_left_to_the_store(world):
    world.store._ttl = "ttl"
    cell = world.cell(5)
    assert run(wait(world.store.value())) == "5 alive"
    assert world.store.update(6) is world.store._done
    assert cell.value == "6 set"


@pytest.mark.parametrize("why", ["not cached", "not its key", "waits", "other key"])
def test_other_values_are_left_to_the_store(world, why):
    if why != "not cached":
        world.cell(5)
    if why == "not its key":
        world.context.owns_key = False
    if why == "waits":
        world.store._loading[id(world.context)] = []
    if why == "other key":
        world.task.context = world.context_of(b'"b"')
    assert world.store.value() == "read"
    assert world.store.update(6) == ("written", 6, None)


def fields_of(cell):
    return cell.value, cell.stamp, cell.own_ttl, cell.stored, cell.dirty


def test_cells_of_stored_values(objects):
    stored = [stored_value(-(1 << 40), b'{"a":1}', 5), None, stored_value(0, b"null"), stored_value(1 << 62, b"2")]
    cells = objects.Cell.all_of(iter(stored), msgspec.json.decode)
    assert [*map(fields_of, cells)] == [
        ({"a": 1}, -(1 << 40), 5, True, False),
        (None, 0, 0, False, False),
        (None, 0, 0, True, False),
        (2, 1 << 62, 0, True, False),
    ]


@pytest.mark.parametrize("stored", [b"", b"123456789012345"])
def test_short_values_are_refused(objects, stored):
    with pytest.raises(ValueError, match="is no stored value"):
        objects.Cell.all_of([stored], msgspec.json.decode)


def test_errors_of_decoding_are_passed_on(objects):
    with pytest.raises(msgspec.DecodeError):
        objects.Cell.all_of([stored_value(1, b"2"), stored_value(1, b"{")], msgspec.json.decode)


def test_values_read_ahead_become_cells(world):
    world.store._ahead = {KEY: stored_value(3, b"5", 2)}
    assert run(wait(world.store.value())) == 5
    assert fields_of(world.store._cells[KEY]) == (5, 3, 2, True, False)
    assert world.store._ahead == {}
    world.store.update(6)
    assert fields_of(world.store._cells[KEY]) == (6, 7, 0, True, True)
    assert run(wait(world.store.value())) == 6


def test_absences_read_ahead_become_cells(world):
    world.store._ahead = {KEY: None}
    assert run(wait(world.store.value())) is None
    assert fields_of(world.store._cells[KEY]) == (None, 0, 0, False, False)


def test_writes_come_upon_values_read_ahead(world):
    world.store._ahead = {KEY: stored_value(3, b"5")}
    assert world.store.update(6) is world.store._done
    assert fields_of(world.store._cells[KEY]) == (6, 7, 0, True, True)


def test_accumulators_read_ahead_become_cells(world):
    world.handle._store = world.store
    world.store._ahead = {KEY: stored_value(3, b"5"), KEY + b"\x00day": stored_value(3, b"50")}
    assert run(wait(world.handle.get())) == "5"
    world.handle._suffix = b"\x00day"
    world.handle.add(1)
    assert fields_of(world.store._cells[KEY + b"\x00day"]) == (51, 7, 0, True, True)


def test_unfit_values_are_left_to_the_store(world):
    world.store._ahead = {KEY: stored_value(3, b"{")}
    assert world.store.value() == "read"
    assert world.store.update(6) == ("written", 6, None)
    assert world.store._cells == {}


def test_other_waiting_calls_are_no_obstacle(world):
    world.store._loading[5] = []
    world.cell(5)
    assert run(wait(world.store.value())) == 5


@pytest.mark.parametrize(
    ("arguments", "named", "written"),
    [((None,), {}, (None, None)), ((6, "ttl"), {}, (6, "ttl")), ((6,), {"ttl": "ttl"}, (6, "ttl"))],
)
def test_none_and_lifetimes_are_left_to_the_store(world, arguments, named, written):
    world.cell(5)
    assert world.store.update(*arguments, **named) == ("written", *written)
    assert world.handle.add(*arguments, **named) == ("added", *written)


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), range(10)])
def test_wrong_arguments_of_calls_are_refused(world, arguments):
    for call in (world.store.update, world.handle.add):
        with pytest.raises(TypeError, match="positional argument"):
            call(*arguments)
        with pytest.raises(TypeError, match="keyword argument"):
            call(1, other=2)


# ---------------------------------------------------------------------------------------------------------- CachedHandle


def test_cached_accumulator_takes_values(world):
    cell = world.cell(5)
    assert world.handle.add(2) is world.store._done
    assert (cell.value, cell.stamp, cell.own_ttl, cell.dirty) == (7, 7, 0, True)
    assert (run(wait(world.handle.get())), world.store.hits) == ("7", 2)


def test_accumulator_of_a_namespace_has_its_own_cell(world):
    world.cell(5)
    cell = world.cell(1, KEY + b"\x00there")
    world.handle._suffix = b"\x00there"
    world.handle.add(2)
    assert cell.value == 3


def test_accumulator_may_become_nothing(world):
    world.store._add = lambda *_: None
    cell = world.cell(5)
    world.handle.add(2)
    assert (cell.value, cell.stamp, cell.dirty) == (None, 1, True)


def test_plain_code_adds_and_gets(world):
    world.store.blocking = True
    world.cell(5)
    assert (world.handle.add(2), world.handle.get(), world.store.hits) == (None, "7", 2)


@pytest.mark.parametrize("why", ["not cached", "no accumulator", "ttl", "not its key"])
def test_other_accumulators_are_left_to_the_store(world, why):
    if why != "not cached":
        world.cell(None if why == "no accumulator" else 5)
    if why == "ttl":
        world.store._ttl = "ttl"
    if why == "not its key":
        world.context.owns_key = False
    assert (world.handle.add(2), world.handle.get()) == (("added", 2, None), "read")


def test_error_of_an_aggregate_leaves_the_accumulator(world):
    def fail(*_):
        raise LookupError

    cell = world.cell(5)
    world.store._add = world.store._get_result = fail
    for call in (lambda: world.handle.add(2), world.handle.get):
        with pytest.raises(LookupError):
            call()
    assert (cell.value, cell.dirty) == (5, False)


# ---------------------------------------------------------------------------------------------------------- RecordLoop


def test_loop_gives_each_record_its_context(world):
    seen = []

    async def process(record, context):
        seen.append((context, record))

    loop = world.loop(process)
    assert loop.run(iter([element(n, n, n % 2, b"%d" % n) for n in range(5)]), 2) is None
    assert len({id(context) for context, _ in seen}) == 5
    assert [(c.record, c.timestamp, c.row_kind, c.key_json, c.order, c.watermark) for c, _ in seen] == [
        (n, n, ("+I", "-D")[n % 2], b"%d" % n, b"place", 2) for n in range(5)
    ]
    assert {(c.references, c.owns_key, c.index, c.expired_until) for c, _ in seen} == {(0, True, 0, 2)}
    assert (loop.late, world.task.context) == (3, seen[-1][0])


def test_loop_calls_the_function_of_the_input(world):
    log = []
    loop = world.loop(lambda record, _: log.append(("a", record)), lambda record, _: log.append(("b", record)))
    loop.run(iter([element(1, input_=1), element(2)]), 0)
    assert log == [("b", 1), ("a", 2)]


def test_loop_stops_where_code_waits(world):
    future = world.Future(None, world.task)
    future.done = False

    async def process(record, context):
        await (future if record == 1 else world.Future(5, world.task))

    elements = iter([element(n) for n in range(3)])
    code, awaited = world.loop(process).run(elements, 0)
    assert (awaited, world.task.context.record, world.task.context.references) == (future, 1, 1)
    future.done, future.answer = True, None
    run(code)
    assert [e[4] for e in elements] == [2]


def test_loop_stops_where_callbacks_wait(world):
    async def process(record, context):
        context.callbacks = deque([record]) if record == 1 else None

    elements = iter([element(n) for n in range(3)])
    assert world.loop(process).run(elements, 0) is None
    assert ([context.record for context in world.task.ended], [e[4] for e in elements]) == ([1], [2])


def test_loop_runs_records_behind_due_timers(world):
    due, log = [], []
    loop = world.loop(lambda record, _: log.append(record), due=due, before=lambda c: "due" if c.record == 1 else None)
    loop.run(iter([element(1)]), 0)
    due.append(1)
    assert loop.run(iter([element(0), element(1), element(2)]), 0) is None
    assert (log, [(earlier, context.record) for earlier, context in world.task.behind]) == ([1, 0], [("due", 1)])
    assert world.task.behind[0][1].references == 0


def test_loop_refuses_results_of_plain_code(world):
    loop = world.loop(lambda *_: "returned", not_plain=LookupError)
    with pytest.raises(LookupError, match="returned"):
        loop.run(iter([element(1)]), 0)


def test_loop_awaits_any_awaitable(world):
    class Wrapped:
        def __await__(self):
            return wait(world.Future(5, world.task)).__await__()

    assert world.loop(lambda *_: Wrapped()).run(iter([element(1)]), 0) is None
    with pytest.raises(TypeError, match="can't be (used in 'await'|awaited)"):
        world.loop(lambda *_: 5).run(iter([element(1)]), 0)


@pytest.mark.parametrize(
    "wrong",
    [1, (), element(1)[:5], element(1, "no time"), element(1, kind=9), element(1, kind=None), element(1, input_=9)],
)
def test_loop_refuses_wrong_elements(world, wrong):
    async def process(record, context):
        pass

    with pytest.raises((TypeError, ValueError, IndexError)):
        world.loop(process).run(iter([wrong]), 0)


def test_error_of_code_leaves_its_context(world):
    def fail(record, context):
        raise LookupError(record)

    with pytest.raises(LookupError):
        world.loop(fail).run(iter([element(1)]), 0)
    assert (world.task.context.record, world.task.context.references) == (1, 1)


# ---------------------------------------------------------------------------------------------------------- the collector


class Seen:
    """Something that a test looks for when it should be gone."""


def in_a_context(world, seen):
    context = world.context_of()
    seen.context, context.record = context, seen


def in_a_future(world, seen):
    seen.future = world.Future(seen, world.task)


def in_an_await(world, seen):
    future = world.Future(seen, world.task)
    future.done = False
    seen.code = wait(future)
    seen.code.send(None)


def in_a_cell(world, seen):
    seen.cell = world.objects.Cell(seen, 0, stored=True)


def in_cells(world, seen):
    seen.store, seen.store._cells = type(world.store)(), {KEY: seen}


def in_a_handle(world, seen):
    seen.handle, seen.handle._store = type(world.handle)(), seen


def in_outputs(world, seen):
    seen.outputs = type(world.outputs)(Emitted, "insert")
    seen.outputs.main = [seen]


def in_a_loop(world, seen):
    seen.loop = world.loop(seen)


def in_a_task(world, seen):
    seen.task = type(world.task)()
    seen.task.context = seen


@pytest.mark.parametrize(
    "make",
    [in_a_context, in_a_future, in_an_await, in_a_cell, in_cells, in_a_handle, in_outputs, in_a_loop, in_a_task],
)
def test_cycles_are_collected(world, make):
    for _ in range(3):
        seen = Seen()
        make(world, seen)
        is_there = weakref.ref(seen)
        del seen
        gc.collect()
        assert is_there() is None


def test_destructors_may_use_the_objects(world):
    """Make futures and contexts while others end."""
    answers = []

    class Dropped:
        def __del__(self):
            answers.append(run(wait(world.Future("inner", world.task))))
            world.context_of()

    for _ in range(100):
        context = world.context_of()
        context.record, context.function = Dropped(), Dropped()
        del context
        world.cell(Dropped())
        world.store.update(Dropped())
        world.Future(Dropped(), world.task)
    assert set(answers) == {"inner"}
    assert len(answers) >= 400
