"""All kinds of state, on every backend and in every style of code, against a model in plain Python."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    AggregatingState,
    Cleanup,
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    StateIterator,
    StateTtl,
    Struct,
    UpdateType,
    ValueState,
    Visibility,
)
from headrace.execution.element import NO_WATERMARK
from headrace.options import AsyncStateOptions, KeyOrder
from headrace.state.backend import named
from headrace.state.key_groups import key_group, task_of
from headrace.testing import KeyedHarness, Snapshot
from tests.unit.conftest import Backends
from tests.unit.support.fuzzing import examples
from tests.unit.support.hand_executor import DrawnExecutor

GROUPS = 16
STYLES = ["await", "all at once", "callbacks", "plain"]


class Call(Struct, frozen=True):
    """A call of a state's method in a namespace; `ttl` is in milliseconds."""

    state: str
    name: str
    arguments: tuple[Any, ...] = ()
    namespace: str = ""
    ttl: int | None = None


class Work(Struct, frozen=True):
    number: int
    key: str
    calls: list[Call]


class Told(Struct, frozen=True):
    number: int
    answers: list[Any]


class Mean(Struct):
    count: int = 0
    total: int = 0


class MeanOf(AggregateFunction[int, Mean, str]):
    """Changes its accumulators in place, as the API allows."""

    def create_accumulator(self):
        return Mean()

    def add(self, value, mean, /):
        mean.count += 1
        mean.total += value
        return mean

    def get_result(self, mean, /):
        return f"{mean.total}/{mean.count}"

    def merge(self, one, other, /):
        return Mean(one.count + other.count, one.total + other.total)


def digits(so_far, added):
    """Append digits: not commutative, so that a wrong order is detected."""
    return so_far + added


class Calls:
    def call(self, asked):
        state = getattr(self, asked.state)
        if asked.namespace:
            state = state.namespace(asked.namespace)
        arguments = list(asked.arguments)
        if asked.state == "reducing" and asked.name == "add":
            arguments = [str(number) for number in arguments]
        elif asked.state == "reducing" and asked.name == "add_all":
            arguments = [[str(number) for number in arguments[0]]]
        lived = {} if asked.ttl is None else {"ttl": timedelta(milliseconds=asked.ttl)}
        return getattr(state, asked.name)(*arguments, **lived)


class Awaiting(Calls, KeyedProcessFunction[Work, Told]):
    async def process(self, work, ctx, /):
        answers = []
        for asked in work.calls:
            answer = self.call(asked)
            if isinstance(answer, StateIterator):
                answers.append([item async for item in answer])
            else:
                answers.append(await answer)
        ctx.collect(Told(work.number, answers))


class AllAtOnce(Calls, KeyedProcessFunction[Work, Told]):
    async def process(self, work, ctx, /):
        asked = [self.call(call) for call in work.calls]
        answers = [
            [item async for item in answer] if isinstance(answer, StateIterator) else await answer for answer in asked
        ]
        ctx.collect(Told(work.number, answers))


class CallingBack(Calls, KeyedProcessFunction[Work, Told]):
    idle: ValueState[int]

    async def process(self, work, ctx, /):
        answers: list[Any] = [None] * len(work.calls)
        for place, asked in enumerate(work.calls):
            answer = self.call(asked)
            if isinstance(answer, StateIterator):
                answers[place] = []
                await answer.on_next(answers[place].append)
            else:
                answer.then_accept(lambda value, place=place: answers.__setitem__(place, value))
        await self.idle.value()
        ctx.collect(Told(work.number, answers))


class Plain(Calls, KeyedProcessFunction[Work, Told]):
    def process(self, work, ctx, /):
        answers = []
        for asked in work.calls:
            answer = self.call(asked)
            answers.append(list(answer) if isinstance(answer, StateIterator) else answer)
        ctx.collect(Told(work.number, answers))


_STYLES = dict(zip(STYLES, (Awaiting, AllAtOnce, CallingBack, Plain), strict=True))


def function_of(style, ttl):
    """Return a function in one of the `STYLES`, whose states have this TTL."""
    states = {
        "idle": ValueState("idle", int),
        "value": ValueState("value", int, ttl=ttl),
        "map": MapState("map", str, int, ttl=ttl),
        "list": ListState("list", int, ttl=ttl),
        "reducing": ReducingState("reducing", str, digits, ttl=ttl),
        "aggregating": AggregatingState("aggregating", MeanOf(), ttl=ttl),
    }
    base = _STYLES[style]
    return type(base.__name__, (base,), {**states, "__orig_bases__": vars(base)["__orig_bases__"]})()


@dataclass
class Rig:
    """Harnesses that share the keys like tasks."""

    new: Any
    new_function: Any
    automatic: bool = True
    order: KeyOrder = KeyOrder.RECORD_ORDERED
    cache_entries: int = 1_000_000
    answers_by: list[int] | None = None
    """Numbers that say in which order requests are answered."""
    harnesses: list[Any] = field(default_factory=list)
    collected: dict[int, Any] = field(default_factory=dict)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self):
        self.harnesses = [self._harness(self.new_function())]
        self._shuffle(self.harnesses[0])

    def process(self, key, at, calls):
        number = next(self.numbers)
        task = task_of(key_group(msgspec.json.encode(key), GROUPS), GROUPS, len(self.harnesses))
        for place, harness in enumerate(self.harnesses):
            if place == task:
                harness.process(Work(number, key, calls), at)
            else:
                harness._ordinal += 1
        return number

    def watermark(self, at):
        for harness in self.harnesses:
            harness.watermark(at)

    def trim(self):
        for harness in self.harnesses:
            for store in harness._process.stores:
                store.trim()

    def spill(self):
        """Write all changes to the backends, before the tasks end."""
        for harness in self.harnesses:
            harness.drain()
            for store in harness._process.stores:
                harness._store.write_batch([*store.writes(store.changes())])
                store.drop()

    def restore(self, parallelism, new_function):
        """Continue from a snapshot in `parallelism` tasks, with other code, on empty backends."""
        taken = [harness.snapshot() for harness in self.harnesses]
        self._close()
        entries = [entry for snapshot in taken for entry in snapshot.entries]
        self.harnesses = []
        for task in range(parallelism):
            owned = [
                e for e in entries if task_of(key_group(named(e[0]).key_json, GROUPS), GROUPS, parallelism) == task
            ]
            harness = self._harness(new_function())
            snapshot = Snapshot(tuple(owned), taken[0].watermark, taken[0].ordinal, GROUPS, taken[0].processing_time)
            harness._store.write_batch(snapshot.entries)
            harness._ordinal, harness._watermark = snapshot.ordinal, snapshot.watermark
            harness._start()
            self._shuffle(harness)
            self.harnesses.append(harness)

    def answers(self):
        self._collect()
        return self.collected

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for harness in self.harnesses:
            harness.close()

    def _close(self):
        self._collect()
        for harness in self.harnesses:
            harness.close()

    def _collect(self):
        for harness in self.harnesses:
            harness.drain()
            self.collected |= {output.number: output.answers for output in harness.output() if isinstance(output, Told)}

    def _shuffle(self, harness):
        if self.answers_by is not None:
            controller = harness._process.controller
            controller._executor = controller.batches._executor = DrawnExecutor(harness._store, self.answers_by)

    def _harness(self, function):
        return KeyedHarness(
            function,
            key=lambda work: work.key,
            backend=self.new(),
            max_parallelism=GROUPS,
            automatic=self.automatic,
            options=AsyncStateOptions(order_with_same_key=self.order, buffer_size=3, cache_entries=self.cache_entries),
        )


@dataclass
class Entry:
    value: Any
    stamp: int
    own: int | None


class Model:
    """State in dicts: by state, key and namespace, and within lists and maps by user key."""

    def __init__(self, ttl):
        self.ttl = ttl if ttl is not None and ttl.update is not UpdateType.DISABLED else None
        self.refuses_lifetimes = ttl is None
        self.entries: dict[tuple[str, str, str], dict[Any, Entry]] = {}
        self.added = itertools.count()

    def answers(self, key, at, watermark, calls, *, style="await"):
        self.key, self.at, self.clock = key, at, watermark
        self.walks_later, self.walked = style == "all at once", []
        answers = [getattr(self, call.state)(call) for call in calls]
        for group, name, entry in self.walked:
            if group.get(name) is entry:
                self.read(group, name)
        return answers

    def group(self, state, namespace):
        return self.entries.setdefault((state, self.key, namespace), {})

    def is_dead(self, entry):
        return self.ttl is not None and entry.stamp + (entry.own or self.ttl.milliseconds) <= self.clock

    def read(self, group, name, *, is_read=True):
        entry = group.get(name)
        if entry is None:
            return None
        if self.is_dead(entry):
            may_be_seen = self.ttl.visibility is Visibility.RETURN_IF_NOT_CLEANED_UP
            if is_read or not may_be_seen:
                del group[name]
            return entry.value if may_be_seen else None
        if is_read and self.ttl is not None and self.ttl.update is UpdateType.ON_READ_AND_WRITE:
            entry.stamp = max(entry.stamp, self.at)
        return entry.value

    def write(self, group, name, value, own):
        if value is None:
            group.pop(name, None)
            return
        old = group.get(name)
        lives_on = old is not None and not self.is_dead(old)
        stamp = self.at
        if lives_on and self.ttl is not None:
            stamp = old.stamp if self.ttl.update is UpdateType.ON_CREATE else max(old.stamp, self.at)
        group[name] = Entry(value, stamp, own)

    def left(self, group, name):
        entry = group.get(name)
        if entry is None or self.ttl is None or self.is_dead(entry):
            return None
        if self.clock == NO_WATERMARK:
            return timedelta.max
        return timedelta(milliseconds=entry.stamp + (entry.own or self.ttl.milliseconds) - self.clock)

    def walk(self, group):
        """Return the present entries. In a style that continues before it iterates, the entries are read after all other calls."""
        if not self.walks_later:
            return self.all(group)
        result = self.all(group, is_read=False)
        self.walked += [(group, name, group[name]) for name, _ in result]
        return result

    def all(self, group, *, is_read=True):
        result = [(name, self.read(group, name, is_read=is_read)) for name in sorted(group, key=_text)]
        return [(name, value) for name, value in result if value is not None]

    def value(self, call):
        group = self.group("value", call.namespace)
        match call.name:
            case "value":
                return self.read(group, None)
            case "update":
                (value,) = call.arguments
                return self.write(group, None, value, call.ttl)
            case "clear":
                return group.clear()
            case _:
                return self.left(group, None)

    def map(self, call):
        group = self.group("map", call.namespace)
        match call.name:
            case "get":
                return self.read(group, *call.arguments)
            case "contains":
                return self.read(group, *call.arguments) is not None
            case "put":
                name, value = call.arguments
                return self.write(group, name, value, call.ttl)
            case "put_all":
                for name, value in call.arguments[0].items():
                    self.write(group, name, value, call.ttl)
                return None
            case "remove":
                (name,) = call.arguments
                return self.write(group, name, None, None)
            case "clear":
                return group.clear()
            case _:
                return self.whole_map(group, call)

    def whole_map(self, group, call):
        match call.name:
            case "is_empty":
                return not self.all(group, is_read=False)
            case "remaining":
                return self.left(group, *call.arguments)
            case _:
                pick = {"keys": 0, "values": 1, "entries": slice(None)}[call.name]
                return [entry[pick] for entry in self.walk(group)]

    def list(self, call):
        group = self.group("list", call.namespace)
        match call.name:
            case "add":
                return self.append(group, call.arguments, call.ttl)
            case "add_all":
                return self.append(group, call.arguments[0], call.ttl)
            case "update":
                group.clear()
                return self.append(group, call.arguments[0], call.ttl)
            case "clear":
                return group.clear()
            case "merge_namespaces":
                target, sources = call.arguments
                for source in set(sources) - {target}:
                    moving = self.group("list", source)
                    self.group("list", target).update({n: e for n, e in moving.items() if not self.is_dead(e)})
                    moving.clear()
                return None
            case "get_namespaces":
                lists = {name: self.all(self.group("list", name)) for name in dict.fromkeys(*call.arguments)}
                return {name: [value for _, value in entries] for name, entries in lists.items() if entries}
            case "iterate":
                return [value for _, value in self.walk(group)]
            case _:
                return [value for _, value in self.all(group)]

    def append(self, group, values, own):
        for value in values:
            self.write(group, next(self.added), value, own)

    def reducing(self, call):
        return self.accumulating(call, lambda old, new: old + str(new), "", digits)

    def aggregating(self, call):
        result = self.accumulating(
            call,
            lambda old, new: (old[0] + 1, old[1] + new),
            (0, 0),
            lambda one, other: (one[0] + other[0], one[1] + other[1]),
        )
        if isinstance(result, dict):
            return {name: f"{total}/{count}" for name, (count, total) in result.items()}
        return f"{result[1]}/{result[0]}" if isinstance(result, tuple) else result

    def accumulating(self, call, add, nothing, merge):
        group = self.group(call.state, call.namespace)
        match call.name:
            case "add":
                old = self.read(group, None, is_read=False)
                return self.write(group, None, add(nothing if old is None else old, *call.arguments), call.ttl)
            case "add_all":
                old = self.read(group, None, is_read=False)
                for value in call.arguments[0]:
                    old = add(nothing if old is None else old, value)
                return self.write(group, None, old, call.ttl) if call.arguments[0] else None
            case "get":
                return self.read(group, None)
            case "clear":
                return group.clear()
            case "remaining":
                return self.left(group, None)
            case "get_namespaces":
                parts = {name: self.read(self.group(call.state, name), None) for name in dict.fromkeys(*call.arguments)}
                return {name: part for name, part in parts.items() if part is not None}
            case _:
                target, sources = call.arguments
                return self.merge(call.state, dict.fromkeys([target, *sources]), merge)

    def merge(self, state, namespaces, merge):
        groups = [self.group(state, namespace) for namespace in namespaces]
        parts = [self.read(group, None, is_read=False) for group in groups]
        live = [part for part in parts if part is not None]
        if any(part is not None for part in parts[1:]):
            whole = live[0]
            for part in live[1:]:
                whole = merge(whole, part)
            self.write(groups[0], None, whole, None)
        for group in groups[1:]:
            group.clear()


def _text(name):
    return msgspec.json.encode(name) if isinstance(name, str) else b"%020d" % name if name is not None else b""


KEYS = ["a", "b", "dé"]
NAMESPACES = ["", "w1", "w2"]
TEN = timedelta(milliseconds=10)

ttls = st.sampled_from(
    [
        None,
        StateTtl(TEN, update=UpdateType.DISABLED),
        *(
            StateTtl(TEN, update=update, visibility=visibility, cleanup=Cleanup(entries_per_record=0))
            for update in (UpdateType.ON_CREATE, UpdateType.ON_CREATE_AND_WRITE, UpdateType.ON_READ_AND_WRITE)
            for visibility in Visibility
        ),
    ]
)
user_keys = st.sampled_from([*"xyz", 'q"', "zé"])
numbers = st.integers(0, 9)
lifetimes = st.sampled_from([None, None, 3, 25])
sources = st.lists(st.sampled_from(NAMESPACES), max_size=3)


def calls_of(state, *operations):
    return st.one_of(
        [
            st.builds(
                Call,
                st.just(state),
                st.just(name),
                arguments,
                st.sampled_from(NAMESPACES),
                lifetimes if lived else st.none(),
            )
            for name, arguments, lived in operations
        ]
    )


no_arguments = st.just(())
one_number = st.tuples(numbers)
some_numbers = st.tuples(st.lists(numbers, max_size=4))
one_key = st.tuples(user_keys)
merging = st.tuples(st.sampled_from(NAMESPACES), sources)
several = st.tuples(sources)

calls = {
    "value": calls_of(
        "value",
        ("value", no_arguments, False),
        ("update", st.tuples(st.none() | numbers), True),
        ("clear", no_arguments, False),
        ("remaining", no_arguments, False),
    ),
    "map": calls_of(
        "map",
        ("get", one_key, False),
        ("put", st.tuples(user_keys, st.none() | numbers), True),
        ("put_all", st.tuples(st.dictionaries(user_keys, numbers)), True),
        ("remove", one_key, False),
        ("contains", one_key, False),
        ("is_empty", no_arguments, False),
        ("keys", no_arguments, False),
        ("values", no_arguments, False),
        ("entries", no_arguments, False),
        ("clear", no_arguments, False),
        ("remaining", one_key, False),
    ),
    "list": calls_of(
        "list",
        ("add", one_number, True),
        ("add_all", some_numbers, True),
        ("update", some_numbers, True),
        ("get", no_arguments, False),
        ("iterate", no_arguments, False),
        ("clear", no_arguments, False),
        ("get_namespaces", several, False),
        ("merge_namespaces", merging, False),
    ),
    **{
        name: calls_of(
            name,
            ("add", one_number, True),
            ("add_all", some_numbers, True),
            ("get", no_arguments, False),
            ("clear", no_arguments, False),
            ("remaining", no_arguments, False),
            ("get_namespaces", several, False),
            ("merge_namespaces", merging, False),
        )
        for name in ("reducing", "aggregating")
    },
}


cache_sizes = st.sampled_from([1, 3, 1_000_000])


def transforms_of(kinds):
    records = st.tuples(
        st.just("record"),
        st.sampled_from(KEYS),
        st.integers(-8, 4),
        st.lists(st.one_of([calls[kind] for kind in kinds]), min_size=1, max_size=5),
    )
    return st.lists(
        st.one_of(
            records,
            records,
            records,
            st.tuples(st.just("watermark"), st.integers(0, 8)),
            st.tuples(st.just("restore"), st.integers(1, 3), st.sampled_from(STYLES)),
            st.tuples(st.just("trim")),
            st.tuples(st.just("spill")),
        ),
        max_size=14,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(calls))
@examples(20)
@given(
    data=st.data(),
    ttl=ttls,
    style=st.sampled_from(STYLES),
    automatic=st.booleans(),
    order=st.sampled_from(KeyOrder),
    cache_entries=cache_sizes,
)
def test_state_kinds_behave_like_plain_collections(backends, kind, data, ttl, style, automatic, order, cache_entries):
    steps = data.draw(transforms_of([kind]))
    run(backends, steps, ttl, style, automatic=automatic, order=order, cache_entries=cache_entries)


@examples(60)
@given(
    steps=transforms_of(sorted(calls)),
    ttl=ttls,
    style=st.sampled_from(STYLES),
    automatic=st.booleans(),
    order=st.sampled_from(KeyOrder),
    cache_entries=cache_sizes,
)
def test_states_of_all_kinds_are_independent(backends, steps, ttl, style, automatic, order, cache_entries):
    run(backends, steps, ttl, style, automatic=automatic, order=order, cache_entries=cache_entries)


@pytest.mark.slow
@examples(150)
@given(
    steps=transforms_of(sorted(calls)),
    ttl=ttls,
    style=st.sampled_from(STYLES),
    order=st.sampled_from(KeyOrder),
    cache_entries=cache_sizes,
    answers_by=st.lists(st.integers(0, 9), min_size=1, max_size=9),
)
def test_answer_order_makes_no_difference(steps, ttl, style, order, cache_entries, answers_by):
    options = {"order": order, "cache_entries": cache_entries, "answers_by": answers_by}
    run(Backends("hashmap", None), steps, ttl, style, automatic=False, **options)


def short_lived(state, name, *arguments):
    return Call(state, name, arguments, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("visibility", Visibility)
@pytest.mark.parametrize(
    ("written", "reads"),
    [
        (short_lived("value", "update", 5), [Call("value", "value")]),
        (short_lived("map", "put", "x", 5), [Call("map", "get", ("x",))]),
        (short_lived("map", "put", "x", 5), [Call("map", "contains", ("x",)), Call("map", "entries")]),
        (short_lived("map", "put_all", {"x": 5, "y": 6}), [Call("map", "is_empty"), Call("map", "keys")]),
        (short_lived("map", "put", "x", 5), [Call("map", "entries"), Call("map", "get", ("x",))]),
        (short_lived("list", "add", 5), [Call("list", "iterate"), Call("list", "get")]),
        (short_lived("reducing", "add", 5), [Call("reducing", "merge_namespaces", ("", ("w1",)))]),
        (short_lived("reducing", "add", 5), [Call("reducing", "remaining"), Call("reducing", "add", (6,))]),
        (short_lived("aggregating", "add", 5), [Call("aggregating", "get")]),
    ],
)
def test_read_of_expired_entry_removes_it(backends, written, reads, visibility, style):
    ttl = StateTtl(TEN, visibility=visibility, cleanup=Cleanup(entries_per_record=0))
    steps = [("record", "a", 0, [written]), ("watermark", 8), ("restore", 2, style), ("record", "a", 0, reads)]
    steps += [("record", "a", 0, reads), ("restore", 1, style)]
    run(backends, steps, ttl, style, automatic=True, order=KeyOrder.RECORD_ORDERED)


def run(backends, steps, ttl, style, *, automatic, **options):
    """Run the steps with an engine and with the model, and compare the answers of every call."""
    expected: dict[int, Any] = {}
    model, clock, watermark = Model(ttl), 0, NO_WATERMARK
    with (
        backends.lent() as new,
        Rig(new, partial(function_of, style, ttl), automatic=automatic, **options) as rig,
    ):
        for step in [*steps, *everything()]:
            match step:
                case ("record", key, offset, calls):
                    calls = calls if ttl else [msgspec.structs.replace(call, ttl=None) for call in calls]
                    clock += 2
                    number = rig.process(key, clock + offset, calls)
                    expected[number] = model.answers(key, clock + offset, watermark, calls, style=style)
                case ("watermark", more):
                    watermark = max(watermark, clock + more - 6)
                    rig.watermark(watermark)
                case ("restore", parallelism, style):
                    rig.restore(parallelism, partial(function_of, style, ttl))
                case ("spill",) if backends.kind != "delta":  # which has no database of a task's own
                    rig.spill()
                case _:
                    rig.trim()
        assert rig.answers() == expected


def everything():
    """Read all stored entries at the end."""
    asked = [("value", "value"), ("map", "entries"), ("list", "get"), ("reducing", "get"), ("aggregating", "get")]
    calls = [Call(state, name, (), namespace, None) for state, name in asked for namespace in NAMESPACES]
    return [("record", key, 0, calls) for key in KEYS]
