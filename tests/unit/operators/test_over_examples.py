"""Single frames, shown row by row: ties, places, the end of the input, corrections, and what the state holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import pytest

from headrace import Late, Lifetime, Pipeline, RowKind, StateTtl, Struct, Timestamp, TimestampMicros
from headrace.errors import UserFunctionError
from headrace.operators import Count, First, Last, Lead, RowNumber, Sum
from headrace.testing import KeyedHarness, SideRecord
from tests.unit.operators.over_jobs import (
    FAR,
    Ahead,
    Counted,
    Payment,
    Placed,
    Weighed,
    Whole,
    harness_of,
    over,
    payments,
)

INSERT, BEFORE, AFTER, DELETE = RowKind
HOUR = timedelta(hours=1)


def give(harness, *given, kind=INSERT):
    """Process payments `(at, cents)` and watermarks; return the changes of this call."""
    before = len(harness.kinds())
    for item in given:
        if isinstance(item, int):
            harness.watermark(item)
        else:
            at, cents, *number = item
            harness.process(Payment("a", at, cents, id=number[0] if number else at), timestamp=at, kind=kind)
    return harness.kinds()[before:]


def values(changes, *names):
    return [tuple(getattr(record, name) for name in names) for _, record in changes]


def test_sums_of_flinks_page():
    """Flink, "Over Aggregation": the sum of the amounts of a product in the hour before each order."""

    class Order(Struct, frozen=True):
        order_id: int
        product: str
        order_time: Timestamp
        amount: int

    class Summed(Struct, frozen=True):
        order_id: int
        order_time: Timestamp
        amount: int
        one_hour_prod_amount_sum: Annotated[int, Sum("amount")]

    minute = 60_000
    orders = [Order(number, "nuts", number * 30 * minute, 10**number) for number in range(5)]
    stream = Pipeline("shop").source("orders", Order, event_time="order_time").key_by("product")
    for options, sums in (
        ({"within": HOUR}, [1, 11, 111, 1110, 11100]),
        ({"rows": 11, "state_ttl": Lifetime.FOREVER}, [1, 11, 111, 1111, 11111]),
        ({"rows": 2, "state_ttl": Lifetime.FOREVER}, [1, 11, 110, 1100, 11000]),
    ):
        function = stream.over(f"sums_{len(options)}_{sums[-1]}", Summed, **options).operators[-1].function
        with KeyedHarness(function, key=lambda order: order.product) as harness:
            for order in orders:
                harness.process(order, timestamp=order.order_time)
            harness.watermark(FAR)
            assert [record.one_hour_prod_amount_sum for _, record in harness.kinds()] == sums


def test_rows_of_equal_time_see_one_another():
    rows = [(5, 1, 1), (5, 2, 2), (9, 4, 3), FAR]
    with harness_of(within=4) as harness:
        assert values(give(harness, *rows), "id", "total") == [(1, 3), (2, 3), (3, 7)]
    with harness_of() as harness:
        assert values(give(harness, *rows), "id", "total") == [(1, 3), (2, 3), (3, 7)]
    with harness_of(rows=2) as harness:
        assert values(give(harness, *rows), "id", "total") == [(1, 1), (2, 3), (3, 6)]


def test_order_by_parts_unbounded_rows_of_equal_time():
    rows = [(5, 2, 2), (5, 1, 1), (5, 8, 2), FAR]
    with harness_of(order_by="id") as harness:
        assert values(give(harness, *rows), "id", "total") == [(1, 1), (2, 11), (2, 11)]
    with harness_of(within=4, order_by="id") as harness:  # a range knows the time alone
        assert values(give(harness, *rows), "id", "total") == [(1, 11), (2, 11), (2, 11)]


def test_microseconds_order_within_a_millisecond():
    class Tick(Struct, frozen=True):
        symbol: str
        at: TimestampMicros

    class Numbered(Struct, frozen=True):
        at: TimestampMicros
        number: Annotated[int, RowNumber()]
        first: Annotated[int, First("at")]
        last: Annotated[int, Last("at")]

    source = Pipeline("ticks").source("ticks", Tick, event_time="at").key_by("symbol")
    function = source.over("n", Numbered, order_by="at", rows=2, state_ttl=HOUR).operators[-1].function
    with KeyedHarness(function, key=lambda tick: tick.symbol) as harness:
        for micros in (5_009, 5_001, 4_999):
            harness.process(Tick("a", micros), timestamp=micros // 1000)
        harness.watermark(FAR)
        expected = [
            Numbered(4_999, 1, 4_999, 4_999),
            Numbered(5_001, 2, 4_999, 5_001),
            Numbered(5_009, 3, 5_001, 5_009),
        ]
        assert [record for _, record in harness.kinds()] == expected


def test_result_waits_for_the_watermark():
    with harness_of(Counted, within=9) as harness:
        assert give(harness, (5, 1), (3, 1), 2) == []
        assert values(give(harness, 3), "id", "payments") == [(3, 1)]
        assert values(give(harness, 5), "id", "payments") == [(5, 2)]
        assert [emitted.timestamp for emitted in harness._process.emitted] == [3, 5]


@pytest.mark.parametrize("options", [{}, {"within": 3}, {"rows": 4}])
def test_record_at_the_watermark_is_late(options):
    with harness_of(**options) as harness:
        assert values(give(harness, 5, (5, 1), (4, 1), (6, 1), FAR), "id") == [(6,)]
        late = [output.record.at for output in harness.output() if isinstance(output, SideRecord)]
        assert late == [5, 4]


def test_lead_waits_for_its_rows():
    with harness_of(Ahead) as harness:
        assert give(harness, (1, 10), 1, (2, 20), 2) == []
        assert values(give(harness, (7, 70), 7), "id", "next", "second") == [(1, 20, 7)]
        assert values(give(harness, FAR), "id", "next", "second") == [(2, 70, -1), (7, None, -1)]


def test_lifetime_ends_the_wait_for_rows():
    with harness_of(Ahead, state_ttl=timedelta(milliseconds=10)) as harness:
        assert give(harness, (1, 10), (4, 40), 13) == []
        assert values(give(harness, 14), "id", "next", "number") == [(1, 40, 1), (4, None, 2)]
        assert values(give(harness, (15, 50), FAR), "id", "next", "number") == [(15, None, 1)]


def test_key_begins_anew_after_its_lifetime():
    with harness_of(Placed, rows=3, state_ttl=timedelta(milliseconds=10)) as harness:
        numbers = values(give(harness, (1, 1), (11, 2), (22, 3), 30), "number", "payments", "before")
        assert numbers == [(1, 1, None), (2, 2, 1), (1, 1, None)]


def test_late_row_corrects_those_behind_it():
    with harness_of(Counted, rows=2, keep=10) as harness:
        first = give(harness, (1, 1), (5, 5), (9, 9), 9)
        assert values(first, "id", "total") == [(1, 1), (5, 6), (9, 14)]
        changes = give(harness, (3, 3))
        assert [kind for kind, _ in changes] == [INSERT, BEFORE, AFTER]
        assert values(changes, "id", "total") == [(3, 4), (5, 6), (5, 8)]
        assert [emitted.timestamp for emitted in harness._process.emitted][-3:] == [3, 5, 5]


def test_row_later_than_keep_is_set_aside():
    with harness_of(Counted, within=5, keep=10) as harness:
        give(harness, (20, 1), 20)
        assert values(give(harness, (11, 1)), "id") == [(11,)]
        assert give(harness, (10, 1)) == []
        assert [output.record.at for output in harness.output() if isinstance(output, SideRecord)] == [10]


def test_late_row_corrects_the_lead_before_it():
    class Next(Struct, frozen=True):
        id: int
        next: Annotated[int | None, Lead("id")]

    with harness_of(Next, keep=10, state_ttl=Lifetime.FOREVER) as harness:
        give(harness, (1, 1), (50, 5), 50)
        changes = give(harness, (45, 4))
        assert [(kind, record.id, record.next) for kind, record in changes] == [
            (BEFORE, 1, 50),
            (AFTER, 1, 45),
            (INSERT, 45, 50),
        ]


@pytest.mark.parametrize(
    ("options", "entries"), [({"rows": 3}, 1), ({}, 1), ({"rows": 1}, 0), ({"rows": 3, "keep": 4}, 2)]
)
def test_state_of_a_key_is_bounded(options, entries):
    with harness_of(Counted, **options) as harness:
        give(harness, *((at, 1) for at in range(100)), 200)
        assert len(harness.snapshot().entries) == entries
        if options.get("rows") == 3:
            passed = harness.state("passed", "a")
            assert (passed.number, [row.at for row in passed.rows], passed.frame) == (100, [98, 99], None)


def test_state_of_a_range_is_readable():
    with harness_of(Counted, within=3, backend="delta") as harness:
        give(harness, (1, 10), (3, 30), (9, 90), 4)
        harness.snapshot()
        rows = harness.table("keyed_state").to_pylist()
        assert {(row["state"], row["namespace"]) for row in rows} == {
            ("rows_within_3ms", None),
            ("frame_within_3ms", None),
            ("waiting", "9"),
        }


@pytest.mark.parametrize("options", [{}, {"keep": 5}, {"rows": 2}, {"within": 4}])
def test_undeclared_retraction_fails(options):
    with (
        harness_of(**options) as harness,
        pytest.raises(UserFunctionError, match=r"over\(\) cannot take a record back"),
    ):
        give(harness, (5, 1), kind=DELETE)


def test_range_beyond_the_calendar_is_an_error():
    with harness_of(within=10) as harness, pytest.raises(UserFunctionError, match="the frame of that time ends after"):
        give(harness, (253_402_300_799_999, 1))


@dataclass(frozen=True)
class Refused:
    """Arguments of over(), the class of the error, and what it says."""

    given: dict
    error: type
    message: str


class Unknown(Struct, frozen=True):
    id: int
    rows: int


class Twice(Struct, frozen=True):
    id: Annotated[int, Count(), RowNumber()]


class Narrow(Struct, frozen=True):
    next: Annotated[int, Lead("cents")]


class Default(Struct, frozen=True):
    next: Annotated[int | None, Lead("cents", default="none")]


FOREVER = {"state_ttl": Lifetime.FOREVER}
REFUSED = {
    "two frames": Refused({"rows": 3, "within": HOUR}, ValueError, "rows and within are two frames"),
    "no rows": Refused({"rows": 0, **FOREVER}, ValueError, "rows must be a whole number of at least 1"),
    "half a row": Refused({"rows": 1.5, **FOREVER}, ValueError, "rows must be a whole number"),
    "number as range": Refused({"within": 5}, TypeError, "within must be a timedelta, not 5"),
    "negative range": Refused({"within": -HOUR}, ValueError, "within must be whole milliseconds, from 0"),
    "part of a millisecond": Refused({"within": timedelta(microseconds=1)}, ValueError, "whole milliseconds"),
    "no lifetime": Refused({}, ValueError, "nothing bounds the state, so .* of each key would be kept for good"),
    "no lifetime of rows": Refused({"rows": 3}, ValueError, "nothing bounds the state"),
    "needless lifetime": Refused({"within": HOUR, **FOREVER}, ValueError, "the watermark frees the state"),
    "no keep": Refused({"within": HOUR, "late": Late.CORRECT}, ValueError, "late=Late.CORRECT needs keep"),
    "keep without correction": Refused({"within": HOUR, "keep": HOUR}, ValueError, "give late=Late.CORRECT beside it"),
    "nothing kept": Refused(
        {"late": Late.CORRECT, "keep": timedelta(0)}, ValueError, "keep must be whole milli.* from 1"
    ),
    "late as text": Refused({"within": HOUR, "late": "drop"}, TypeError, "late must be Late.DROP or Late.CORRECT"),
    "unknown order": Refused({"order_by": "size", **FOREVER}, ValueError, "has no field 'size'"),
    "order by a list": Refused({"order_by": ["id"], **FOREVER}, TypeError, "order_by takes a field, or a tuple"),
    "undefined field": Refused({"result": Unknown, **FOREVER}, TypeError, "field 'rows' of Unknown does not say how"),
    "two functions": Refused(
        {"result": Twice, **FOREVER}, TypeError, "field 'id' of Twice has 2 aggregates or functions"
    ),
    "lead without none": Refused({"result": Narrow, **FOREVER}, TypeError, "field 'next' of Narrow is int, but Lead"),
    "default of another type": Refused({"result": Default, **FOREVER}, TypeError, "the default is 'none', and the val"),
    "lead with a rich lifetime": Refused(
        {"result": Ahead, "state_ttl": StateTtl(HOUR)}, ValueError, "a row waits for the rows"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused(case):
    refused = REFUSED[case]
    given = {"result": Whole, **refused.given}
    with pytest.raises(refused.error, match=f"(?s)over 'recent': .*{refused.message}"):
        payments().over("recent", given.pop("result"), **given)


def test_offset_below_one_is_refused():
    with pytest.raises(ValueError, match="Lead: offset must be a whole number of at least 1, not 0"):
        Lead("cents", offset=0)


def test_changes_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"over 'recent': 'payments' may take records back.*additions\(\)"):
        over(payments(row_kind="kind"), Counted, within=5)
    upserts = Pipeline("p").source("payments", Payment, event_time="at", row_kind="kind").drop_update_before("id")
    with pytest.raises(ValueError, match=r"over 'recent': .*additions\(\)"):
        over(upserts.key_by("card"), Counted, within=5)
    added = Pipeline("p").source("payments", Payment, event_time="at", row_kind="kind").additions()
    assert over(added.key_by("card"), Counted, within=5)


def test_stream_without_a_key_is_refused():
    stream = Pipeline("p").source("payments", Payment, event_time="at")
    with pytest.raises(ValueError, match="over 'recent': 'payments' needs a key"):
        over(stream, Counted, within=5)


def test_key_of_a_function_is_a_field():
    class Keyed(Struct, frozen=True):
        key: str
        payments: Annotated[int, Count()]

    stream = Pipeline("p").source("payments", Payment, event_time="at").key_by(last_digit)
    function = stream.over("n", Keyed, within=HOUR).operators[-1].function
    with KeyedHarness(function, key=last_digit) as harness:
        assert [record for _, record in give(harness, (1, 1), (2, 1), FAR)] == [Keyed("a", 1), Keyed("a", 2)]


def last_digit(payment: Payment) -> str:
    return payment.card[-1]


def test_late_correction_survives_a_restart():
    with harness_of(Counted, rows=2, keep=10, backend="delta") as harness:
        give(harness, (1, 1), (5, 5), 9)
        snapshot = harness.snapshot()
    with harness_of(Counted, rows=2, keep=10, backend="delta", snapshot=snapshot) as harness:
        changes = give(harness, (3, 3))
        assert [(kind, record.id, record.total) for kind, record in changes] == [
            (INSERT, 3, 4),
            (BEFORE, 5, 6),
            (AFTER, 5, 8),
        ]


def test_rows_passed_before_corrections_began_stay():
    with harness_of(Placed, within=20) as harness:
        give(harness, (5, 5), 9)
        snapshot = harness.snapshot()
    with harness_of(Placed, within=20, keep=10, snapshot=snapshot) as harness:
        assert values(give(harness, (3, 3), (2, 2)), "id", "payments") == [(3, 1), (2, 1), (3, 1), (3, 2)]
        assert values(give(harness, (12, 1), FAR), "id", "payments") == [(12, 4)]


@pytest.mark.parametrize("options", [{"within": 7}, {"rows": 2}, {"within": 7, "keep": 5}])
def test_sum_of_floats_forgets_rows_behind(options):
    """1e16 + 0.1 is 1e16: whoever added it and took it away again would have lost the rest."""
    with harness_of(Weighed, **options) as harness:
        for at, weight in ((0, 1e16), (5, 0.1), (10, 0.2)):
            harness.process(Payment("a", at, 1, weight, id=at), timestamp=at)
        harness.watermark(FAR)
        assert [record.weight for _, record in harness.kinds()] == [1e16, 1e16 + 0.1, 0.1 + 0.2]


def test_sum_that_no_row_sees_may_exceed():
    """After 0 has left, 1 and 2 exceed 64 bits together; but no row has this frame."""
    largest = (1 << 63) - 1
    with harness_of(Counted, within=3) as harness:
        totals = values(give(harness, (0, -5), (1, largest), (2, 5), (5, 1), (6, 2), FAR), "total")
        assert totals == [(-5,), (largest - 5,), (largest,), (6,), (3,)]
        assert harness.snapshot().entries == ()
