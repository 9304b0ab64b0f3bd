"""Decimals and days on their whole way: files, keys, state, windows, joins, rankings, sinks. Compared with a plain loop."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import (
    Digits,
    JoinType,
    KeyedProcessFunction,
    Lifetime,
    Pipeline,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.api.graph import KeyBy
from headrace.api.records import digits_of
from headrace.errors import ConfigError, UserFunctionError
from headrace.operators import Avg, Count, CountDistinct, Max, Min, Rank, Sum, Tumbling
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType
from headrace.records.column_types import columns_of
from headrace.records.keys import key_reader
from headrace.records.source_values import fitting
from headrace.records.value_arrays import UnfitRecord, to_array
from headrace.state.codec import KeyCodec
from headrace.testing import PipelineHarness
from tests.unit.sources.source_reading import read_bytes
from tests.unit.support.fuzzing import examples

Money = Annotated[Decimal, Digits(12, 2)]
WIDE = Context(prec=200)
CENTS = st.integers(-(10**12) + 1, 10**12 - 1)


class Sale(Struct, frozen=True):
    day: date
    at: Timestamp
    price: Money
    rate: Annotated[Decimal, Digits(6, 4)] | None = None


class Total(Struct, frozen=True):
    day: date
    n: Annotated[int, Count()]
    total: Annotated[Decimal, Digits(38, 2), Sum("price")]
    mean: Annotated[Decimal, Digits(38, 3), Avg("price")]
    least: Annotated[Money, Min("price")]
    most: Annotated[Money, Max("price")]
    rates: Annotated[int, CountDistinct("rate")]


class ByPrice(Struct, frozen=True):
    price: Money
    n: Annotated[int, Count()]
    last: Annotated[date, Max("day")]


class Best(Struct, frozen=True):
    day: date
    price: Money
    rank: Annotated[int, Rank()]


class Rate(Struct, frozen=True):
    day: date
    at: Timestamp
    factor: Annotated[Decimal, Digits(6, 4)]


class Spent(Struct, frozen=True):
    day: date
    spent: Money


class Spending(KeyedProcessFunction[Sale, Spent]):
    """Total of each day in a state of decimals."""

    spent = ValueState("spent", Decimal)

    def process(self, sale, ctx):
        total = (self.spent.value() or Decimal(0)) + sale.price
        self.spent.update(total)
        ctx.collect(Spent(sale.day, total))


def converted(sale: Sale, rate: Rate) -> Spent:
    return Spent(sale.day, (sale.price * rate.factor).quantize(Decimal("0.01"), ROUND_HALF_UP))


def sales(name="money"):
    return Pipeline(name).source("sales", Sale, event_time="at", order_by=("at",))


def rows_of(pipeline, records, sink="out", batches=1, **options):
    harness = PipelineHarness(pipeline, **options)
    for part in range(batches):
        if own := records[part::batches]:
            harness.feed("sales", own)
    harness.run(end_of_input=True)
    return harness.sink(sink)


SALES = st.lists(
    st.tuples(
        st.sampled_from([date(1, 1, 1), date(2026, 1, 31), date(9999, 12, 31)]), CENTS, st.none() | st.integers(-9, 9)
    ),
    min_size=1,
    max_size=8,
).map(
    lambda drawn: [
        Sale(day, at, Decimal(cents).scaleb(-2), None if rate is None else Decimal(rate).scaleb(-4))
        for at, (day, cents, rate) in enumerate(drawn)
    ]
)


@pytest.mark.slow
@examples(20)
@given(SALES, st.integers(1, 3))
@example([Sale(date(2026, 1, 1), at, Decimal("9999999999.99")) for at in range(7)], 1)
def test_aggregates_equal_a_plain_loop(records, batches):
    pipeline = sales().key_by("day").window(Tumbling(timedelta(days=1))).aggregate("totals", Total).sink("out")
    by_day = defaultdict(list)
    for record in records:
        by_day[record.day].append(record)
    expected = []
    for day, own in by_day.items():
        prices = [record.price for record in own]
        total = sum(int(price.scaleb(2, WIDE)) for price in prices)
        mean = WIDE.divide(Decimal(total).scaleb(-2, WIDE), len(own)).quantize(Decimal("0.001"), ROUND_HALF_EVEN, WIDE)
        rates = {record.rate for record in own} - {None}
        expected.append(
            Total(day, len(own), Decimal(total).scaleb(-2, WIDE), mean, min(prices), max(prices), len(rates))
        )
    assert sorted(rows_of(pipeline, records, batches=batches), key=lambda row: row.day) == sorted(
        expected, key=lambda row: row.day
    )


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_state_of_decimals_survives_micro_batches(backend):
    day = date(2026, 1, 31)
    records = [Sale(day, at, Decimal(at).scaleb(-2)) for at in range(9)]
    pipeline = sales().key_by("day").process("spending", Spending()).sink("out")
    rows = rows_of(pipeline, records, batches=3, job={"state": {"backend": backend}})
    assert max(row.spent for row in rows) == Decimal("0.36")


@pytest.mark.slow
@given(SALES)
@examples(10)
def test_equal_decimals_are_one_key(records):
    pipeline = sales().key_by("price").window(Tumbling(timedelta(days=1))).aggregate("by_price", ByPrice).sink("out")
    counted = defaultdict(list)
    for record in records:
        counted[record.price].append(record.day)
    rows = rows_of(pipeline, records)
    assert {row.price: (row.n, row.last) for row in rows} == {
        price: (len(own), max(own)) for price, own in counted.items()
    }


def test_made_decimals_have_one_key_at_their_scale():
    read = key_reader(KeyBy(fields=("price",)))
    prices = [Decimal(1), Decimal("1.0"), Decimal("1.00")]
    assert {str(read(Sale(date(2026, 1, 1), 0, price))) for price in prices} == {"1.00"}
    assert str(read(Sale(date(2026, 1, 1), 0, Decimal("-0.00")))) == "0.00"


@pytest.mark.parametrize(("given_key", "text"), [("1.50", "1.5"), ("100", "100"), ("1E+2", "100"), ("-0.0", "0")])
def test_decimal_of_a_key_function_is_shortened(given_key, text):
    read = key_reader(KeyBy(function=lambda _: Decimal(given_key)))
    assert str(read(Sale(date(2026, 1, 1), 0, Decimal(1)))) == text


@examples(50)
@given(st.lists(CENTS, min_size=2, max_size=9), st.booleans())
def test_decimals_rank_as_numbers(cents, descending):
    prices = [Decimal(number).scaleb(-2) for number in cents]
    text = sort_text("price", ValueType(Decimal, may_be_none=False, digits=(12, 2)), descending=descending)
    assert sorted(prices, key=text) == sorted(prices, reverse=descending)


@examples(50)
@given(st.lists(st.dates(), min_size=2, max_size=9), st.booleans())
def test_days_rank_as_days(days, descending):
    text = sort_text("day", ValueType(date, may_be_none=False), descending=descending)
    assert sorted(days, key=text) == sorted(days, reverse=descending)


def test_function_that_ranks_decimals_must_declare_digits():
    def price(sale: Sale) -> Decimal:
        return sale.price

    with pytest.raises(TypeError, match=r"Annotated\[Decimal, Digits\(18, 2\)\]"):
        sales().key_by("day").top("best", 1, by=price, state_ttl=Lifetime.FOREVER)


def test_most_expensive_sale_is_first():
    records = [Sale(date(2026, 1, 31), at, Decimal(price)) for at, price in enumerate(["9.99", "10.00", "-1.00"])]
    rows = rows_of(
        sales().key_by("day").top("best", 1, by="price", result=Best, state_ttl=Lifetime.FOREVER).sink("out"), records
    )
    assert rows[-1] == Best(date(2026, 1, 31), Decimal("10.00"), 1)


def test_join_by_day_finds_equal_days():
    pipeline = Pipeline("money")
    left = pipeline.source("sales", Sale, event_time="at").key_by("day")
    right = pipeline.source("rates", Rate, event_time="at").key_by("day")
    left.join("joined", right, emit=converted, how=JoinType.INNER, state_ttl=Lifetime.FOREVER).sink("out")
    harness = PipelineHarness(pipeline)
    harness.feed("sales", [Sale(date(2026, 1, day), day, Decimal("10.00")) for day in (1, 2)])
    harness.feed("rates", [Rate(date(2026, 1, 2), 3, Decimal("1.0825"))])
    harness.run(end_of_input=True)
    assert harness.sink("out") == [Spent(date(2026, 1, 2), Decimal("10.83"))]


BAD = [
    (Decimal("1.555"), "price"),
    (Decimal(12345678901), "price"),
    (1.5, "price"),
    ("1.5", "price"),
    (Decimal("NaN"), "price"),
]


@pytest.mark.parametrize(("price", "field"), BAD)
def test_value_beyond_its_digits_is_never_rounded(price, field):
    pipeline = sales().map(lambda sale: Sale(sale.day, sale.at, price), record=Sale).sink("out")
    with pytest.raises(UserFunctionError, match=field):
        rows_of(pipeline, [Sale(date(2026, 1, 1), 0, Decimal(1))])


def test_decimal_without_digits_is_refused():
    class Loose(Struct):
        price: Decimal

    with pytest.raises(ConfigError, match=r"Annotated\[Decimal, Digits\(18, 2\)\]"):
        columns_of(Loose)


@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (39, 2), (5, 6), (5, -1)])
def test_digits_outside_of_sql_are_refused(precision, scale):
    with pytest.raises(ValueError, match="precision is from 1 to 38"):
        Digits(precision, scale)


def test_columns_have_the_types_of_sql():
    kinds = {column.name: column.sink_type for column in columns_of(Sale)}
    assert kinds["price"] == pa.decimal128(12, 2)
    assert kinds["rate"] == pa.decimal128(6, 4)
    assert kinds["day"] == pa.date32()


class FineRate(Struct, frozen=True):
    price: Annotated[Decimal, Digits(12, 3)]
    at: Timestamp


def test_join_by_decimals_of_other_scales_is_refused():
    pipeline = Pipeline("money")
    left = pipeline.source("sales", Sale, event_time="at").key_by("price")
    right = pipeline.source("rates", FineRate, event_time="at").key_by("price")
    with pytest.raises(TypeError, match="a key must have the same type on both sides"):
        left.join("joined", right, emit=lambda sale, _: sale, how=JoinType.INNER, state_ttl=Lifetime.FOREVER)


# -------------------------------------------------------------------------------------------------------------- long texts

LONG = [
    ("1.55" + "0" * 39, Decimal("1.55")),
    ("1." + "0" * 106, Decimal("1.00")),
    ("0." + "0" * 40 + "1", None),
    ("1e999999999999999999999", None),
    ("0e99999", Decimal("0.00")),
    ("1.50e0", Decimal("1.50")),
]


@pytest.mark.parametrize(("text", "value"), LONG)
@pytest.mark.parametrize("form", ["csv", "json number", "json text"])
def test_long_decimal_is_exact_or_a_bad_row(text, value, form):
    class Priced(Struct, frozen=True):
        at: Timestamp
        price: Money

    if form == "csv":
        outcome = read_bytes("csv", f"at,price\n1,{text}\n".encode(), Priced)
    else:
        written = text if form == "json number" else f'"{text}"'
        outcome = read_bytes("json", f'{{"at": 1, "price": {written}}}\n'.encode(), Priced)
    assert [record and record.price for record in outcome.records] == [value]
    assert (value is None) == bool(outcome.errors)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_float_is_the_decimal_that_it_shows(kind):
    (column,) = [column for column in columns_of(Sale) if column.name == "price"]
    numbers = pa.chunked_array([pa.array([0.5, 2.25, 100, float("nan"), float("inf")], pa.float64()).cast(kind)])
    values, problems = fitting(numbers, column)
    assert values.to_pylist() == [Decimal("0.50"), Decimal("2.25"), Decimal(100), None, None]
    assert [*problems] == [3, 4]


def test_float_of_32_bits_is_a_tenth():
    (column,) = [column for column in columns_of(Sale) if column.name == "price"]
    values, problems = fitting(pa.chunked_array([pa.array([0.1, 1e9, 12345.67], pa.float32())]), column)
    assert (values.to_pylist(), problems) == ([Decimal("0.10"), Decimal(10**9), Decimal("12345.67")], {})


@examples(200)
@given(st.integers(-(10**9), 10**9))
def test_decimal_of_a_float_stays_the_same(cents):
    price = Decimal(cents / 100)
    (column,) = [column for column in columns_of(Sale) if column.name == "price"]
    if price == round(price, 2):
        assert to_array([price, Decimal("1.00")], column).to_pylist() == [price, Decimal("1.00")]
    else:
        with pytest.raises(UnfitRecord, match="which is not a decimal of 12 digits"):
            to_array([price, Decimal("1.00")], column)


def test_last_declared_digits_hold_for_columns_and_means():
    class Means(Struct, frozen=True):
        day: date
        mean: Annotated[Money, Digits(38, 8), Avg("price")]

    pipeline = sales().key_by("day").window(Tumbling(timedelta(days=1))).aggregate("means", Means).sink("out")
    day = date(2026, 1, 31)
    rows = rows_of(pipeline, [Sale(day, at, Decimal(price)) for at, price in enumerate((1, 2, 2))])
    assert [row.mean for row in rows] == [Decimal("1.66666667")]
    assert digits_of(Annotated[Money, Digits(38, 8)]) == (38, 8)


def price_and_day(sale: Sale) -> tuple[Money, date]:
    return sale.price, sale.day


def test_function_with_declared_digits_ranks_decimals():
    records = [Sale(date(2026, 1, day), day, Decimal(price)) for day, price in ((1, "2.00"), (2, "2.00"), (3, "1.99"))]
    stream = sales().key_by(lambda _: "all").top("best", 1, by=price_and_day, result=Best, state_ttl=Lifetime.FOREVER)
    assert rows_of(stream.sink("out"), records)[-1].day == date(2026, 1, 2)


def written_twice(sale: Sale) -> Decimal:
    return Decimal("1.5") if sale.at else Decimal("1.500")


def infinite(_: Sale) -> Decimal:
    return Decimal("Infinity")


def test_equal_decimals_of_a_function_count_once():
    class Prices(Struct, frozen=True):
        day: date
        n: Annotated[int, CountDistinct(written_twice)]

    pipeline = sales().key_by("day").window(Tumbling(timedelta(days=1))).aggregate("prices", Prices).sink("out")
    rows = rows_of(pipeline, [Sale(date(2026, 1, 31), at, Decimal(1)) for at in range(2)])
    assert [row.n for row in rows] == [1]


def test_equal_decimals_are_one_key_of_a_map():
    codec = KeyCodec(Decimal, "state 'prices'")
    assert {codec.encode(Decimal(text)) for text in ("1", "1.0", "1.00")} == {b'"1"'}
    assert {codec.encode(Decimal(text)) for text in ("0", "-0", "0.00")} == {b'"0"'}


def test_sum_stores_no_infinite_decimal():
    class Totals(Struct, frozen=True):
        day: date
        total: Annotated[Decimal, Digits(38, 2), Sum(infinite)]

    pipeline = sales().key_by("day").window(Tumbling(timedelta(days=1))).aggregate("totals", Totals).sink("out")
    with pytest.raises(UserFunctionError, match="met Infinity"):
        rows_of(pipeline, [Sale(date(2026, 1, 31), 0, Decimal(1))])
