from __future__ import annotations

import enum
from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Literal

import pytest

from headrace import AggregateFunction, Pipeline, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.operators import ArgMax, Avg, Count, CountDistinct, First, Hopping, Last, Max, Min, Session, Sum, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.window_jobs import Bid, Joined, Totals

TEN = Tumbling(timedelta(milliseconds=10))


class Colour(enum.Enum):
    RED = "red"


class Item(Struct, frozen=True):
    key: Literal["a", "b"]
    at: Timestamp
    number: int
    size: float
    name: str | None
    colour: Colour
    tags: list[str]


def price_of(item: Item) -> float:
    return item.size * item.number


def items(*key, row_kind=None):
    source = Pipeline("p").source("items", Item, event_time="at", row_kind=row_kind)
    return source.key_by(*(key or ("key",)))


def result_of(**fields):
    """Return a class of results with these annotations."""
    return type("Result", (Struct,), {"__annotations__": fields, "__module__": __name__}, frozen=True)


def aggregated(*records, keyed_by=("key",), **fields):
    """Return the emitted results, as tuples."""
    stream = items(*keyed_by).window(TEN).aggregate("results", result_of(**fields))
    function = stream.operators[-1].function
    key = keyed_by[0] if callable(keyed_by[0]) else attrgetter(*keyed_by)
    with KeyedHarness(function, key=key) as harness:
        for record in records:
            harness.process(record, timestamp=record.at)
        harness.watermark(1000)
        return sorted(tuple(getattr(record, name) for name in fields) for _, record in harness.kinds())


def run(pipeline, **inputs):
    """Run a job to the end of its input."""
    harness = PipelineHarness(pipeline, bucket=1)
    for source, records in inputs.items():
        harness.feed(source, records)
    harness.run(end_of_input=True)
    return harness


def item(at=0, number=1, size=1.5, name=None, key="a", colour=Colour.RED, tags=()):
    return Item(key, at, number, size, name, colour, [*tags])


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Annotated[int, Count()], 2),
        (Annotated[int, Count("name")], 1),
        (Annotated[int, Count(where=lambda item: item.number > 1)], 1),
        (Annotated[float, Sum("size")], 2.75),
        (Annotated[float, Sum(price_of)], 4.0),
        (Annotated[float, Sum(lambda item: item.size)], 2.75),
        (Annotated[float, Avg("number")], 1.5),
        (Annotated[float, Min("size")], 1.25),
        (Annotated[int, Max(lambda item: item.number)], 2),
        (Annotated[str | None, Max("name")], "n"),
        (Annotated[str | None, ArgMax("name", by="size")], "n"),
        (Annotated[int | None, ArgMax("number", by="name")], 2),
        (Annotated[Item, First()], item(0)),
        (Annotated[Item, ArgMax(by="number")], item(1, 2, 1.25, "n")),
        (Annotated[Colour, Last("colour")], Colour.RED),
        (Annotated[list[str], First("tags")], []),
        (Annotated[int, CountDistinct("colour")], 1),
        (Annotated[int, CountDistinct(lambda item: (item.number, item.size))], 2),
        (Annotated[Timestamp, Max("at")], 1),
    ],
)
def test_aggregate_gives_its_expected_value(annotation, expected):
    assert aggregated(item(0), item(1, 2, 1.25, "n"), value=annotation) == [(expected,)]


def test_zeros_of_both_signs_are_one_value():
    assert aggregated(item(size=0.0), item(size=-0.0), sizes=Annotated[int, CountDistinct("size")]) == [(1,)]


def test_values_that_are_all_null_give_null():
    names = {"most": Annotated[str | None, Max("name")], "first": Annotated[str | None, First("name")]}
    assert aggregated(item(), item(), **names) == [(None, None)]


def test_result_may_have_no_aggregate():
    rows = aggregated(item(), item(1, key="b"), item(25), key=Literal["a", "b"])
    assert rows == [("a",), ("a",), ("b",)]


def test_keys_keep_their_types():
    result = result_of(colour=Colour, number=int, items=Annotated[int, Count()])
    pipeline = items("number", "colour").window(TEN).aggregate("results", result).sink("results")
    actual = run(pipeline, items=[item(), item(number=2), item(3)]).sink("results")
    assert sorted(actual, key=lambda element: element.number) == [result(Colour.RED, 1, 2), result(Colour.RED, 2, 1)]


def test_function_is_a_key():
    def by_size(item: Item) -> str:
        return "large" if item.size > 2 else "small"

    rows = aggregated(
        item(), item(size=3.0), item(size=4.0), keyed_by=(by_size,), key=str, items=Annotated[int, Count()]
    )
    assert rows == [("large", 2), ("small", 1)]


def test_result_may_hold_a_record():
    result = result_of(first=Annotated[Item, First()], tags=Annotated[list[str], Last("tags")])
    records = [item(1, tags="ab"), item(2, tags="c")]
    harness = run(items().window(TEN).aggregate("results", result).sink("results"), items=records)
    assert harness.sink("results") == [result(records[0], ["c"])]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"total": int}, r"field 'total' of Result does not say how it is made: .* are 'key', 'window_start'"),
        ({"total": Annotated[float, Sum("number")]}, r"'total' of Result is float, but Sum\('number'\) gives int"),
        ({"most": Annotated[str, Max("name")]}, r"is str, but Max\('name'\) gives str \| None: correct"),
        (
            {"most": Annotated[int, Max("number", where=bool)]},
            r"is int, but Max\('number', where=bool\) gives int \| None",
        ),
        ({"window_start": str}, r"'window_start' of Result is str, but window_start gives Timestamp"),
        ({"key": int}, r"'key' of Result is int, but key_by\('key'\) gives typing.Literal"),
        (
            {"total": Annotated[str, Sum("name")]},
            r"Sum\('name'\): 'name' is str \| None, and only int, float and Decimal",
        ),
        ({"most": Annotated[Colour, Max("colour")]}, r"Max\('colour'\): 'colour' is Colour, and only"),
        ({"most": Annotated[int, ArgMax("number", by="tags")]}, r"by?.*'tags' is list\[str\], and only"),
        (
            {"most": Annotated[int, ArgMax("number", by=lambda element: element.size)]},
            "annotate what the function of 'by'",
        ),
        ({"two": Annotated[int, Count(), Sum("number")]}, "'two' of Result has 2 aggregates"),
        ({"joined": Annotated[int, Joined()]}, r"is int, but Joined\(\) gives str"),
    ],
)
def test_field_of_another_type_is_refused(fields, message):
    with pytest.raises(TypeError, match=f"aggregate 'results': .*{message}"):
        items().window(TEN).aggregate("results", result_of(**fields))


def test_unknown_field_is_refused():
    with pytest.raises(ValueError, match="aggregate 'results': Item has no field 'prise'; it has key"):
        items().window(TEN).aggregate("results", result_of(total=Annotated[int, Sum("prise")]))


def test_custom_aggregate_function_must_name_its_types():
    class Untyped(AggregateFunction):
        create_accumulator = add = get_result = merge = None

    with pytest.raises(TypeError, match="Untyped must name its types"):
        items().window(TEN).aggregate("results", result_of(one=Annotated[int, Untyped()]))


class Busiest(Struct, frozen=True):
    window_start: Timestamp
    most: Annotated[int, Max("bids")]


def test_corrected_results_are_a_stream_with_retractions():
    bids = Pipeline("p").source("bids", Bid, event_time="at").key_by("item").window(TEN)
    corrected = bids.aggregate("totals", Totals, allowed_lateness=timedelta(1)).filter(bool)
    sessions = corrected.key_by("window_start").window(Session(timedelta(1)))
    with pytest.raises(ValueError, match="'busiest': early results of sessions need a stream that takes nothing back"):
        sessions.aggregate("busiest", Busiest, early=timedelta(hours=1))


def test_windows_of_windows_end_with_the_input():
    hopping = Hopping(timedelta(milliseconds=10), timedelta(milliseconds=5))
    bids = Pipeline("p").source("bids", Bid, event_time="at").key_by("item").window(hopping)
    first = bids.aggregate("totals", Totals)
    pipeline = first.key_by("window_start").window(hopping).aggregate("busiest", Busiest).sink("busiest")
    harness = run(pipeline, bids=[Bid("a", 1, 1), Bid("b", 2, 1), Bid("b", 7, 1)])
    result = sorted((row.window_start, row.most) for row in harness.sink("busiest"))
    assert result == [(-5, 1), (0, 1), (0, 2), (5, 1), (5, 2), (10, 1)]


@pytest.mark.parametrize("windows", [TEN, Session(timedelta(milliseconds=10))])
def test_corrections_reach_the_window_of_the_result(windows):
    """The corrections have the event time of the result, not of the late record."""

    class Grand(Struct, frozen=True):
        item: str
        window_start: Timestamp
        cents: Annotated[int | None, Sum("total")]

    five = Tumbling(timedelta(milliseconds=5))
    bids = Pipeline("p").source("bids", Bid, event_time="at").key_by("item").window(windows)
    totals = bids.aggregate("totals", Totals, allowed_lateness=timedelta(milliseconds=40))
    grand = totals.key_by("item").window(five).aggregate("grand", Grand, allowed_lateness=timedelta(milliseconds=40))
    bids = [Bid("a", 0, 1), Bid("b", 12, 1), Bid("a", 0, 6), Bid("b", 35, 1)]
    table = grand.upsert_materialize(
        "latest", primary_key=("item", "window_start"), upsert_key=("item", "window_start")
    )
    result = sorted((row.window_start, row.cents) for row in run(table.sink("grand"), bids=bids).sink("grand"))
    ends = [10, 20, 40] if windows is TEN else [10, 22, 45]
    assert result == [((end - 1) // 5 * 5, cents) for end, cents in zip(ends, [7, 1, 1], strict=True)]


def test_sum_that_is_infinite_fails():
    with pytest.raises(UserFunctionError, match=r"Sum\('size'\) met inf, which can be neither compared nor stored"):
        aggregated(item(size=1e308), item(size=1e308), total=Annotated[float, Sum("size")])


def test_only_late_records_go_aside():
    results = Pipeline("p").source("bids", Bid, event_time="at").key_by("item").window(TEN).aggregate("totals", Totals)
    with pytest.raises(ValueError, match="aggregate 'totals' has no side output 'early': it has one, 'late'"):
        results.side("early", Bid)
    with pytest.raises(TypeError, match="side output 'late' of 'totals' has records of type Bid"):
        results.side("late", Totals)
