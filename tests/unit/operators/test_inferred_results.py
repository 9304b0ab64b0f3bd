"""Aggregates that code names one by one give a record type of their own, with the results of a declared type."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    Digits,
    Json,
    KeyedProcessFunction,
    Lifetime,
    NaiveDatetime,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
)
from headrace.api.records import digits_of, unit_of
from headrace.operators import ArgMax, Avg, Count, CountDistinct, First, Lag, Last, Max, RowNumber, Sum, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

Money = Annotated[Decimal, Digits(12, 2)]


class Sale(Struct, frozen=True):
    customer: str | None
    at: Timestamp
    cents: int
    amount: Money
    city: str | None = None


class Declared(Struct, frozen=True):
    customer: str
    sales: Annotated[int, Count()]
    cents: Annotated[int, Sum("cents")]
    latest: Annotated[Timestamp, Max("at")]
    cities: Annotated[int, CountDistinct("city")]


class Longest(AggregateFunction[Sale, int, int]):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return max(accumulator, len(value.city or ""))

    def get_result(self, accumulator):
        return accumulator

    def merge(self, one, other):
        return max(one, other)


ONE_BY_ONE = {"sales": Count(), "cents": Sum("cents"), "latest": Max("at"), "cities": CountDistinct("city")}
SALES = st.lists(
    st.builds(
        Sale,
        st.sampled_from("abc"),
        st.integers(0, 50),
        st.integers(0, 9),
        st.decimals(0, 99, places=2),
        st.sampled_from([None, "x", "y"]),
    ),
    max_size=12,
)


def keyed():
    pipeline = Pipeline("shop")
    return pipeline.source("sales", Sale, event_time="at", out_of_orderness=timedelta(seconds=1)).key_by("customer")


def types_of(stream):
    return {field.name: field.type for field in msgspec.structs.fields(stream.record_type())}


def as_texts(rows):
    return sorted(msgspec.json.encode(row).decode() for row in rows)


def end_of(pipeline, sales, seed):
    """Return the rows of the sink after some micro-batches."""
    harness, chance = PipelineHarness(pipeline, parallelism=2), random.Random(seed)
    rest = list(sales)
    while rest:
        size = chance.randint(1, 5)
        harness.feed("sales", rest[:size])
        rest = rest[size:]
        harness.run()
    harness.run(end_of_input=True)
    return as_texts(harness.sink("totals"))


@examples(5)
@given(sales=SALES, seed=st.integers(0, 99))
def test_results_equal_those_of_a_declared_type(sales, seed):
    declared = keyed().aggregate("totals", Declared, state_ttl=Lifetime.FOREVER)
    declared = declared.upsert_materialize("latest", primary_key=("customer",)).sink("totals")
    named = keyed().aggregate("totals", state_ttl=Lifetime.FOREVER, **ONE_BY_ONE).sink("totals", key="customer")
    assert end_of(named, sales, seed) == end_of(declared, sales, seed)


def test_result_has_key_window_and_aggregates():
    stream = keyed().window(Tumbling(timedelta(seconds=1))).aggregate("per_second", **ONE_BY_ONE)
    names = ["customer", "window_start", "window_end", "sales", "cents", "latest", "cities"]
    assert list(types_of(stream)) == names
    assert stream.record_type().__name__ == "PerSecond"


def test_decimals_get_all_digits_and_times_stay_times():
    stream = keyed().aggregate("totals", total=Sum("amount"), mean=Avg("amount"), state_ttl=Lifetime.FOREVER)
    assert [digits_of(types_of(stream)[name]) for name in ("total", "mean")] == [(38, 2), (38, 6)]
    kept = keyed().aggregate("totals", first=First("at"), state_ttl=Lifetime.FOREVER)
    assert unit_of(types_of(kept)["first"]) == "ms"


def test_best_value_keeps_digits_and_unit():
    stream = keyed().aggregate(
        "totals", best=ArgMax("amount", by="cents"), at=ArgMax("at", by="cents"), state_ttl=Lifetime.FOREVER
    )
    types = types_of(stream)
    assert (digits_of(types["best"]), unit_of(types["at"])) == ((12, 2), "ms")


NEW_YEAR = datetime(2026, 1, 1)  # noqa: DTZ001 - it has no zone


class Event(Struct, frozen=True):
    id: str
    at: Timestamp
    payload: Json
    local: NaiveDatetime | None


def test_values_keep_the_marks_of_their_fields():
    events = Pipeline("events").source("events", Event, event_time="at").key_by("id")
    last, latest = Last("payload"), Max("local")
    stream = events.aggregate("totals", last=last, latest=latest, times=Sum("at"), state_ttl=Lifetime.FOREVER)
    types = types_of(stream)
    assert unit_of(types["times"]) is None
    harness = PipelineHarness(stream.sink("totals", key="id"))
    harness.feed("events", [Event("a", 1, {"x": [1]}, NEW_YEAR), Event("a", 2, {"x": [2]}, None)])
    harness.run(end_of_input=True)
    assert [(row.last, row.latest, row.times) for row in harness.sink("totals")] == [({"x": [2]}, NEW_YEAR, 3)]
    before = events.over("rows", before=Lag("payload"), then=Lag("local"), rows=2, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(before.sink("rows"))
    harness.feed("events", [Event("a", 1, {"x": [1]}, NEW_YEAR), Event("a", 2, {"x": [2]}, None)])
    harness.run(end_of_input=True)
    assert [(row.before, row.then) for row in harness.sink("rows")] == [
        (None, None),
        ({"x": [1]}, NEW_YEAR),
    ]


def test_values_that_may_be_missing_are_optional():
    stream = keyed().aggregate(
        "totals", dear=Sum("cents", where=lambda sale: sale.cents > 5), state_ttl=Lifetime.FOREVER
    )
    assert types_of(stream)["dear"].__origin__ == int | None


def test_own_functions_and_keys_of_functions_work():
    def city(sale: Sale) -> str | None:
        return sale.city

    pipeline = Pipeline("shop")
    source = pipeline.source("sales", Sale, event_time="at").key_by(city)
    stream = source.aggregate(
        "totals", longest=Longest(), best=ArgMax("customer", by="cents"), state_ttl=Lifetime.FOREVER
    )
    assert list(types_of(stream)) == ["key", "longest", "best"]
    assert end_of(stream.sink("totals", key="key"), [Sale("a", 1, 2, Decimal(1), "xy")], 0) == [
        '{"key":"xy","longest":2,"best":"a"}'
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "neither is given"),
        ({"sales": 5}, TypeError, r"sales=5 is no aggregate, such as Count\(\)"),
        ({"customer": Count()}, ValueError, "the result has a field 'customer' already"),
        ({"cents": Sum(lambda sale: sale.cents)}, TypeError, "the type of cents=Sum"),
        ({"cents": Sum("prize")}, ValueError, "prize"),
        ({"cents": Sum("customer")}, TypeError, "only int, float and Decimal can be added up"),
    ],
)
def test_unclear_results_are_refused(arguments, error, message):
    with pytest.raises(error, match="aggregate 'totals'.*" + message):
        keyed().aggregate("totals", state_ttl=Lifetime.FOREVER, **arguments)
    with pytest.raises(error, match="aggregate 'totals'.*" + message):
        keyed().window(Tumbling(timedelta(seconds=1))).aggregate("totals", **arguments)


def test_type_and_aggregates_together_are_refused():
    with pytest.raises(TypeError, match="leave one of the two out"):
        keyed().aggregate("totals", Declared, n=Count(), state_ttl=Lifetime.FOREVER)


def test_key_function_without_annotation_needs_a_type():
    source = Pipeline("shop").source("sales", Sale, event_time="at")
    with pytest.raises(TypeError, match="the type of the key is not known: annotate what <lambda> returns"):
        source.key_by(lambda sale: sale.city).aggregate("totals", n=Count(), state_ttl=Lifetime.FOREVER)


class Numbered(Sale, frozen=True, kw_only=True):
    sales: Annotated[int, Count()]
    place: Annotated[int, RowNumber()]
    before: Annotated[Timestamp | None, Lag("at")]


@pytest.mark.slow
@examples(3)
@given(sales=SALES)
def test_rows_have_their_record_and_functions(sales):
    named = keyed().over(
        "totals", sales=Count(), place=RowNumber(), before=Lag("at"), rows=3, state_ttl=Lifetime.FOREVER
    )
    declared = keyed().over("totals", Numbered, rows=3, state_ttl=Lifetime.FOREVER)
    rows = [end_of(stream.sink("totals"), sales, 0) for stream in (named, declared)]
    named_rows, declared_rows = (sorted(sorted(msgspec.json.decode(text).items()) for text in texts) for texts in rows)
    assert repr(named_rows) == repr(declared_rows)


def test_function_named_as_a_field_is_refused():
    with pytest.raises(ValueError, match="over 'totals': the result has a field 'cents' already, of Sale: give"):
        keyed().over("totals", cents=Count(), within=timedelta(seconds=1))
    with pytest.raises(TypeError, match="over 'totals' takes a record type.*neither is given"):
        keyed().over("totals", within=timedelta(seconds=1))


# ------------------------------------------------------------------------------------------------ sinks with a key


def test_sink_by_key_keeps_no_history_of_inserts():
    pipeline = Pipeline("shop")
    pipeline.source("sales", Sale, event_time="at").sink("totals", key=("customer",))
    (materializer,) = [operator for operator in pipeline.operators if operator.name == "totals_rows"]
    assert (materializer.primary_key, materializer.upsert_key, materializer.is_needed) == (
        ("customer",),
        ("customer",),
        False,
    )


@examples(5)
@given(sales=SALES, seed=st.integers(0, 99))
def test_sink_by_key_has_the_last_row(sales, seed):
    pipeline = Pipeline("shop")
    pipeline.source("sales", Sale, event_time="at").sink("totals", key="customer")
    last = {sale.customer: sale for sale in sales}
    assert end_of(pipeline, sales, seed) == as_texts(last.values())


def test_sink_by_key_forgets_rows_taken_back():
    class Change(Sale, frozen=True, kw_only=True):
        kind: str = "+I"

    pipeline = Pipeline("shop")
    pipeline.source("sales", Sale, event_time="at", row_kind="kind").sink("totals", key="customer")
    harness = PipelineHarness(pipeline)
    one, other = Sale("a", 1, 1, Decimal(1)), Sale("a", 2, 2, Decimal(2))
    harness.feed("sales", [one, other, other], kinds=[RowKind.INSERT, RowKind.INSERT, RowKind.DELETE])
    harness.run(end_of_input=True)
    assert harness.sink("totals") == [one]


class Fix(KeyedProcessFunction[Sale, Sale]):
    """Passes records on with their kinds, which it does not declare."""

    async def process(self, record, ctx, /):
        ctx.collect(record, ctx.row_kind)


@pytest.mark.parametrize("method", ["join", "semi_join"])
def test_undeclared_retraction_behind_a_join_is_kept(method):
    pipeline = Pipeline("shop")
    sales = pipeline.source("sales", Sale, event_time="at", row_kind="kind").key_by("customer").process("fix", Fix())
    others = pipeline.source("others", Sale, event_time="at").key_by("customer")
    keyed_sales, options = sales.key_by("customer"), {"state_ttl": Lifetime.FOREVER}
    if method == "join":
        options["emit"] = pair
    getattr(keyed_sales, method)("met", others, **options).sink("totals", key="customer")
    harness = PipelineHarness(pipeline)
    one, other = Sale("a", 1, 1, Decimal(1)), Sale("a", 2, 2, Decimal(2))
    harness.feed("sales", [one, other, other], kinds=[RowKind.INSERT, RowKind.INSERT, RowKind.DELETE])
    harness.feed("others", [Sale("a", 1, 9, Decimal(9))])
    harness.run(end_of_input=True)
    assert harness.sink("totals") == [one]


@examples(5)
@given(sales=SALES, places=st.lists(st.integers(0, 11), max_size=5), seed=st.integers(0, 99))
def test_undeclared_retractions_join_in_any_batches(sales, places, seed):
    pipeline = Pipeline("shop")
    source = pipeline.source("sales", Sale, event_time="at", row_kind="kind", out_of_orderness=timedelta(seconds=1))
    others = pipeline.source("others", Sale, event_time="at", out_of_orderness=timedelta(seconds=1))
    fixed = source.key_by("customer").process("fix", Fix()).key_by("customer")
    fixed.join("met", others.key_by("customer"), emit=pair, state_ttl=Lifetime.FOREVER).sink(
        "totals", key=("customer", "at")
    )
    taken_back = [sales[place] for place in {*places} if place < len(sales)]
    rows = [(sale, RowKind.INSERT) for sale in sales] + [(sale, RowKind.DELETE) for sale in taken_back]
    harness, chance, rest = PipelineHarness(pipeline, parallelism=2), random.Random(seed), list(rows)
    harness.feed("others", [Sale(name, at, 1, Decimal(1)) for at in (1, 60) for name in "ab"])
    while rest:
        size = chance.randint(1, 40)
        fed, kinds = zip(*rest[:size], strict=True)
        harness.feed("sales", fed, kinds=kinds)
        rest = rest[size:]
        harness.run()
    harness.run(end_of_input=True)
    left = list(sales)
    for sale in taken_back:
        left.remove(sale)
    expected = {(sale.customer, sale.at) for sale in left if sale.customer in "ab"}
    assert {(row.customer, row.at) for row in harness.sink("totals")} == expected


def pair(sale: Sale, _other: Sale) -> Sale:
    return sale


def test_sink_by_key_needs_it_in_the_results():
    class Only(Struct, frozen=True):
        cents: Annotated[int | None, Max("cents")]

    stream = keyed().aggregate("totals", Only, retract=False, state_ttl=Lifetime.FOREVER)
    with pytest.raises(ValueError, match="upsert"):
        stream.sink("totals", key="cents")


def test_sink_takes_the_key_of_the_operator_before():
    pipeline = Pipeline("shop")
    source = pipeline.source("sales", Sale, event_time="at")
    source.first_value("firsts", key=("customer", "cents")).sink("totals", key=("cents", "customer"))
    assert [operator.name for operator in pipeline.operators] == ["sales", "firsts", "totals"]


def test_field_that_the_record_lacks_is_no_key():
    with pytest.raises(ValueError, match="prize"):
        Pipeline("shop").source("sales", Sale, event_time="at").sink("totals", key="prize")
