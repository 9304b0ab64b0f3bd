"""Fields of fewer bits, and values that compare in their own way: columns give, refuse and order what single records do."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import pytest

from headrace import Float32, History, Int8, Late, Lifetime, Pipeline, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.operators import Avg, Count, Cumulative, Hopping, RowNumber, Sum, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.operators.test_expiring_columns import ONE_BY_ONE
from tests.unit.operators.test_slice_columns import ms


class Odd(enum.Enum):
    """Members of which one equals another."""

    SMALL = "a"
    LARGE = "A"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.value.lower() == other.value.lower()

    def __hash__(self) -> int:
        return hash(self.value.lower())


class Reading(Struct, frozen=True):
    id: str
    n: int
    at: Timestamp
    weight: Float32 | None = None
    odd: Odd = Odd.SMALL
    height: float = 0.0


class Small(Struct, frozen=True):
    id: str
    sum: Annotated[Int8 | None, Sum("n")]


class Halves(Struct, frozen=True):
    id: str
    mean: Annotated[Float32 | None, Avg("height")]
    readings: Annotated[int, Count()]


class Version(Struct, frozen=True):
    id: str
    weight: Float32 | None
    odd: Odd
    valid_from: int
    valid_to: int | None


def both(pipeline: Any, *files: list[Reading]) -> tuple[Any, Any]:
    """Return the rows of the sink, or the error, of columns and of single records."""
    outcomes = []
    for job in ({}, ONE_BY_ONE):
        harness = PipelineHarness(pipeline, job=job, parallelism=1)
        try:
            for file in files:
                harness.feed("readings", file)
                harness.run()
            harness.run(end_of_input=True)
        except UserFunctionError as error:
            outcomes.append(str(error).partition("it emitted")[2].partition("\n")[0])
        else:
            outcomes.append(harness.sink_table("rows").to_pylist())
    return outcomes[0], outcomes[1]


def readings() -> Any:
    return Pipeline("scales").source("readings", Reading, event_time="at")


WINDOWS = [Tumbling(ms(4)), Hopping(ms(4), ms(2)), Cumulative(ms(4), ms(2))]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("numbers", [(100, 20), (100, 100)])
def test_sum_beyond_its_field_is_refused(windows, numbers):
    file = [Reading("a", n, at) for at, n in enumerate(numbers)]
    columns, single = both(readings().key_by("id").window(windows).aggregate("sums", Small).sink("rows"), file)
    assert columns == single
    assert isinstance(columns, str) is (sum(numbers) > 127)


@pytest.mark.parametrize("windows", WINDOWS)
def test_small_floats_round_once(windows):
    file = [Reading(f"{n % 200}", n, n % 4, height=n * 0.7 % 1) for n in range(600)]
    columns, single = both(readings().key_by("id").window(windows).aggregate("means", Halves).sink("rows"), file)
    assert sorted(map(repr, columns)) == sorted(map(repr, single))


def versions(**rules: Any) -> Any:
    rows = readings().apply_changes(
        "versions",
        key=("id",),
        sequence_by="n",
        history=History.SCD2,
        record=Version,
        corrections=Lifetime.FOREVER,
        **rules,
    )
    return rows.sink("rows")


def test_small_float_equals_no_other_number():
    file = [Reading("a", 1, 0, 0.5), Reading("a", 2, 1, 0.1)]
    for deletes in (("weight", 0.1), ("weight", 0.5)):
        columns, single = both(versions(deletes=deletes, tombstones=Lifetime.FOREVER), file)
        assert columns == single


def test_enumeration_compares_its_own_way():
    """An equal member opens no version. It is written otherwise, so the row that shows it is another one."""
    columns, single = both(versions(), [Reading("a", 1, 0), Reading("a", 2, 1, odd=Odd.LARGE)])
    assert columns == single
    assert [(row["odd"], row["valid_from"], row["valid_to"]) for row in columns] == [
        *(("a", 1, None), ("a", 1, None), ("A", 1, None)),
    ]


def test_reordered_keys_keep_the_order_of_events():
    file = [Reading("a", 2, 0), Reading("b", 2, 1), Reading("a", 1, 2, 1.0), Reading("b", 1, 3, 1.0)]
    columns, single = both(versions(), file)
    assert columns == single
    assert [row["id"] for row in columns[:2]] == ["a", "b"]


class Numbered(Struct, frozen=True):
    n: int
    number: Annotated[int, RowNumber()]


def test_rows_that_former_code_kept_count_once():
    """Their timers are left: the key comes row by row, as without columns."""

    def numbered(**late: Any) -> Any:
        rows = readings().key_by("id").over("numbers", Numbered, state_ttl=Lifetime.FOREVER, **late)
        return rows.sink("rows")

    outcomes = []
    for job in ({}, ONE_BY_ONE):
        harness = PipelineHarness(numbered(late=Late.CORRECT, keep=ms(15)), job=job, bucket=1)
        for file in ([Reading("a", at, at) for at in (1, 2, 3)] + [Reading("b", 99, 5)], [Reading("b", 98, 6)]):
            harness.feed("readings", file)
            harness.run()
        harness.change(pipeline=numbered())
        for file in ([Reading("a", 7, 7), Reading("a", 8, 8), Reading("b", 100, 100)], [Reading("b", 101, 101)]):
            harness.feed("readings", file)
            harness.run()
        harness.run(end_of_input=True)
        outcomes.append(sorted((row.n, row.number) for row in harness.sink("rows")))
    assert outcomes[0] == outcomes[1]
