"""A function as a key does what a field of its declared type does, whatever Python's type of the results is: in groups, joins, counts and maps."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Digits, KeyedProcessFunction, Lifetime, MapState, Pipeline, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.operators import Count, CountDistinct
from headrace.testing import PipelineHarness
from tests.unit.records.test_declared_values import Name, Number
from tests.unit.support.fuzzing import FACTOR

FOREVER = Lifetime.FOREVER
BACKENDS = ("hashmap", "rocksdb", "delta")


class Sale(Struct, frozen=True):
    """An input record: its value is one of those that a type has."""

    id: int
    value: int
    at: Timestamp


class Distinct(Struct, frozen=True):
    """A number of values."""

    at: int
    values: int


class Pair(Struct, frozen=True):
    """Ids of two sales whose keys are equal."""

    left: int
    right: int


def pair(left, right) -> Pair:
    return Pair(left.id, right.id)


def all_at_once(sale: Sale) -> int:
    return 1


VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "float": (float, (0, 0.0, -0.0, 1, 1.0, 2.5)),
    "int": (int, (0, 1, Number(1), 2, Number(0), 2)),
    "str": (str, ("a", Name("a"), "b", "", Name(""), "c")),
    "Decimal": (
        Annotated[Decimal, Digits(10, 2)],
        tuple(map(Decimal, ("1.5", "1.50", "15E-1", "2", "2.00", "-0"))),
    ),
}
"""Types, each with values that pass for it. Equal values have several forms."""


def pipeline_of(kind):
    """Return a pipeline that groups, joins and counts by a function that makes values, and by a field that holds them."""
    annotation, values = VALUES[kind]
    record = msgspec.defstruct(
        "Valued", [("value", annotation), ("id", int), ("at", Timestamp)], bases=(Struct,), frozen=True, module=__name__
    )

    def value_of(sale):
        return values[sale.value]

    def valued(sale):
        return record(values[sale.value], sale.id, sale.at)

    value_of.__annotations__["return"] = annotation
    group = msgspec.defstruct("Group", [("key", annotation), ("number", Annotated[int, Count()])], frozen=True)
    by_field = msgspec.defstruct("ByField", [("value", annotation), ("number", Annotated[int, Count()])], frozen=True)
    pipeline = Pipeline("declared")
    sales = pipeline.source("sales", Sale, event_time="at")
    fields = sales.map(valued, record=record)
    sales.key_by(value_of).aggregate("functions", group, state_ttl=FOREVER).sink("functions", key="key")
    fields.key_by("value").aggregate("fields", by_field, state_ttl=FOREVER).sink("fields", key="value")
    both = sales.key_by(value_of).join("both", fields.key_by("value"), emit=pair, state_ttl=FOREVER)
    both.sink("both")
    every = sales.key_by(all_at_once)
    every.aggregate("distinct", state_ttl=FOREVER, values=CountDistinct(value_of)).sink("distinct", key="key")
    return fields.key_by("value").join("own", fields.key_by("value"), emit=pair, state_ttl=FOREVER).sink("own")


@pytest.mark.parametrize("kind", sorted(VALUES))
@settings(max_examples=max(2, round(4 * FACTOR)))
@given(
    chosen=st.lists(st.integers(0, 5), min_size=2, max_size=8),
    backend=st.sampled_from(BACKENDS),
    cut=st.integers(0, 8),
    is_async=st.booleans(),
)
def test_functions_group_and_meet_as_fields(kind, chosen, backend, cut, is_async):
    sales = [Sale(number, value, number) for number, value in enumerate(chosen)]
    harness = PipelineHarness(
        pipeline_of(kind), backend=backend, job={"execution": {"async-state": {"enabled": is_async}}}
    )
    for part in filter(None, (sales[:cut], sales[cut:])):
        harness.feed("sales", part)
        harness.run()
    values = VALUES[kind][1]
    expected = Counter(values[sale.value] for sale in sales)
    assert {row.key: row.number for row in harness.sink("functions")} == expected
    assert {row.value: row.number for row in harness.sink("fields")} == expected
    assert [row.values for row in harness.sink("distinct")] == [len(expected)]
    pairs = [(left.id, right.id) for left in sales for right in sales if values[left.value] == values[right.value]]
    assert sorted((row.left, row.right) for row in harness.sink("both")) == pairs
    assert sorted((row.left, row.right) for row in harness.sink("own")) == pairs


class Maps(KeyedProcessFunction[Sale, Distinct]):
    """Counts the keys of two maps."""

    floats = MapState("floats", float, int)
    decimals = MapState("decimals", Decimal, int)

    async def process(self, sale, ctx, /):
        await self.floats.put(VALUES["float"][1][sale.value], sale.id)
        await self.decimals.put(VALUES["Decimal"][1][sale.value], sale.id)
        numbers = [len([key async for key, _ in own.entries()]) for own in (self.floats, self.decimals)]
        ctx.collect(Distinct(sale.id, 100 * numbers[0] + numbers[1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_keys_of_maps_are_one(backend):
    sales = Pipeline("maps").source("sales", Sale, event_time="at")
    pipeline = sales.key_by(all_at_once).process("maps", Maps()).sink("out")
    harness = PipelineHarness(pipeline, backend=backend)
    for number in range(6):
        harness.feed("sales", [Sale(number, number, number)])
        harness.run()
    numbers = [row.values for row in sorted(harness.sink("out"), key=lambda row: row.at)]
    assert numbers == [101, 101, 101, 202, 202, 303]


def flag(sale: Sale) -> int:
    return sale.value > 0


def test_result_of_another_type_is_refused():
    sales = Pipeline("refused").source("sales", Sale, event_time="at")
    harness = PipelineHarness(sales.key_by(flag).aggregate("n", state_ttl=FOREVER, number=Count()).sink("n", key="key"))
    harness.feed("sales", [Sale(1, 1, 1)])
    with pytest.raises(
        UserFunctionError, match=r"key_by flag.*\n(.*\n)*.*returned True \(bool\), and declares to return int"
    ):
        harness.run()


class Counted(Struct, frozen=True):
    """A number of different values."""

    key: int
    values: Annotated[int, CountDistinct(flag)]


def test_distinct_of_another_type_is_refused():
    sales = Pipeline("refused").source("sales", Sale, event_time="at")
    harness = PipelineHarness(sales.key_by(all_at_once).aggregate("n", Counted, state_ttl=FOREVER).sink("n", key="key"))
    harness.feed("sales", [Sale(1, 1, 1), Sale(2, 2, 2)])
    with pytest.raises(UserFunctionError, match=r"returned True \(bool\), and declares to return int"):
        harness.run()


class Priced(Struct, frozen=True):
    """A record with a decimal."""

    price: Annotated[Decimal, Digits(10, 2)]
    at: Timestamp


def test_decimals_meet_no_undeclared_results():
    pipeline = Pipeline("decimals")
    prices = pipeline.source("prices", Priced, event_time="at").key_by("price")
    undeclared = pipeline.source("sales", Sale, event_time="at").key_by(lambda sale: Decimal(sale.value))
    for one, other in ((prices, undeclared), (undeclared, prices)):
        with pytest.raises(TypeError, match=r"annotate it, the decimal as Annotated\[Decimal, Digits\(38, 2\)\]"):
            one.join("pairs", other, emit=pair, state_ttl=FOREVER)
