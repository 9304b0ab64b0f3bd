"""All kinds of state, on every backend and in every style of code, against a model in plain Python."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Cleanup, StateTtl, UpdateType, Visibility
from headrace.execution.element import NO_WATERMARK
from headrace.options import KeyOrder
from tests.unit.conftest import Backends
from tests.unit.support.fuzzing import examples
from tests.unit.support.kinds import STYLES, Call, Model, Rig, function_of

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
        ),
        max_size=14,
    )


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


@settings(max_examples=60)
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


@settings(max_examples=150)
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
                case _:
                    rig.trim()
        assert rig.answers() == expected


def everything():
    """Read all stored entries at the end."""
    asked = [("value", "value"), ("map", "entries"), ("list", "get"), ("reducing", "get"), ("aggregating", "get")]
    calls = [Call(state, name, (), namespace, None) for state, name in asked for namespace in NAMESPACES]
    return [("record", key, 0, calls) for key in KEYS]
