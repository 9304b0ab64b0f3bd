"""Records with free JSON: `true` and `1` are two values, also where an update or a retraction looks for an equal record."""

from __future__ import annotations

import json
from typing import Annotated

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace import Json, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.operators import Last
from headrace.operators._value_types import are_equal
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

VALUES = st.recursive(
    st.sampled_from([True, 1, False, 0, 1.0, None, "1", "true"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


class Row(Struct, frozen=True):
    key: str
    at: Timestamp
    body: Json = None


class Nested(Struct, frozen=True):
    rows: list[Row]


class Plain(Struct, frozen=True):
    number: float


class Latest(Struct, frozen=True):
    key: str
    body: Annotated[Json, Last("body")]


@given(left=VALUES, right=VALUES)
def test_free_json_is_equal_as_text(left, right):
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert are_equal(Row("a", 1, left), Row("a", 1, right)) is same
    assert are_equal(Nested([Row("a", 1, left)]), Nested([Row("a", 1, right)])) is same


def test_plain_records_are_equal_as_python_says():
    assert are_equal(Plain(0.0), Plain(-0.0))
    assert are_equal(None, None)
    assert not are_equal(Plain(1.0), None)


def table(h):
    return {row.key: json.dumps(row.body) for row in h.sink("out")}


def rows(row_kind="op"):
    return Pipeline("p").source("rows", Row, event_time="at", row_kind=row_kind)


@examples(10)
@given(bodies=st.lists(VALUES, min_size=1, max_size=6))
def test_update_of_free_json_is_kept(bodies):
    stream = rows().normalize("latest", key=("key",)).upsert_materialize("m", primary_key=("key",)).sink("out")
    h = PipelineHarness(stream)
    changes = [Row("a", at, body) for at, body in enumerate(bodies)]
    h.feed("rows", changes, kinds=[RowKind.UPDATE_AFTER] * len(changes))
    h.run()
    assert {row.key: json.dumps(row.body, sort_keys=True) for row in h.sink("out")} == {
        "a": json.dumps(bodies[-1], sort_keys=True)
    }


def best(stream):
    return stream.key_by("key").top("best", 5, by="at", state_ttl=Lifetime.FOREVER)


def test_retraction_takes_the_record_with_its_json():
    stream = best(rows()).upsert_materialize("m", primary_key=("key",)).sink("out")
    h = PipelineHarness(stream)
    h.feed(
        "rows",
        [Row("a", 1, 1), Row("a", 1, True), Row("a", 1, 1)],
        kinds=[RowKind.INSERT, RowKind.INSERT, RowKind.DELETE],
    )
    h.run()
    assert table(h) == {"a": "true"}


@pytest.mark.parametrize(("first", "second"), [(1, True), (True, 1), ({"a": 0}, {"a": False})])
def test_result_of_free_json_changes(first, second):
    stream = rows(None).key_by("key").aggregate("latest", Latest, state_ttl=Lifetime.FOREVER)
    h = PipelineHarness(stream.upsert_materialize("m", primary_key=("key",)).sink("out"))
    for at, body in enumerate((first, second), 1):
        h.feed("rows", [Row("a", at, body)])
        h.run()
    assert table(h) == {"a": json.dumps(second)}
