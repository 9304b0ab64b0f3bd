"""A row is taken back as it was emitted: equal rows that are written otherwise, with 0.0 or -0.0, are two rows of a changelog."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Emit, History, JoinType, Late, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.api.records import canonical_encoder
from headrace.operators import (
    ArgMax,
    ArgMin,
    Count,
    First,
    Hopping,
    Last,
    Max,
    Min,
    Rank,
    Session,
    Sum,
    Tumbling,
)
from headrace.operators._value_types import are_equal, are_identical, place_among
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.test_group_columns import Sale
from tests.unit.operators.test_narrow_fields import Odd
from tests.unit.operators.test_slice_columns import Stage, Step, ordered
from tests.unit.support.changelog_table import ChangelogTable
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
FOREVER = Lifetime.FOREVER
TEXT_OF = canonical_encoder("deterministic")
WEIGHTS = st.sampled_from([0.0, -0.0, 0.0, -0.0, 1.5, None])


def ms(number):
    return timedelta(milliseconds=number)


class Ends(Struct, frozen=True):
    shop: str
    first: Annotated[float | None, First("weight")]
    last: Annotated[float | None, Last("weight")]
    lightest: Annotated[float | None, Min("weight")]
    heaviest: Annotated[float | None, Max("weight")]
    cheapest: Annotated[float | None, ArgMin("weight", by="cents")]
    dearest: Annotated[float | None, ArgMax("weight", by="cents")]
    by_weight: Annotated[int | None, ArgMax("cents", by="weight")]
    weight: Annotated[float | None, Sum("weight")]


class LastOnly(Struct, frozen=True):
    shop: str
    last: Annotated[float | None, Last("weight")]


class Row(Struct, frozen=True):
    shop: str
    weight: float | None


class Version(Row, frozen=True):
    valid_from: int
    valid_to: int | None


class Ranked(Row, frozen=True):
    rank: Annotated[int, Rank()]


class Rest(Row, frozen=True):
    at: Timestamp
    before: Annotated[float | None, Last("weight")]
    sales: Annotated[int, Count()]


def sales(row_kind=None):
    return Pipeline("shop").source("sales", Sale, event_time="at", row_kind=row_kind)


def changes():
    return sales("kind").key_by("shop")


def applied(**options):
    return sales().apply_changes(
        "op", key=("shop",), sequence_by="cents", deletes=("article", "d"), tombstones=FOREVER, **options
    )


def with_versions(**options):
    return applied(record=Version, history=History.SCD2, corrections=FOREVER, **options)


def early(windows):
    return sales().key_by("shop").window(windows).aggregate("op", Ends, early=ms(2), allowed_lateness=ms(1000))


OF_CHANGES = {
    "aggregate": lambda: changes().aggregate("op", Ends, state_ttl=FOREVER),
    "last": lambda: changes().aggregate("op", LastOnly, state_ttl=FOREVER),
    "net aggregate": lambda: changes().aggregate("op", Ends, state_ttl=FOREVER, emit=Emit.NET_CHANGE),
    "top": lambda: changes().top("op", 2, by="cents", state_ttl=FOREVER),
    "ranks": lambda: changes().top("op", 2, by="weight", result=Ranked, state_ttl=FOREVER),
    "normalize": lambda: sales("kind").normalize("op", key=("shop",)),
    "window": lambda: changes().window(Tumbling(ms(10))).aggregate("op", Ends, allowed_lateness=ms(1000)),
    "hopping": lambda: changes().window(Hopping(ms(20), ms(10))).aggregate("op", Ends, allowed_lateness=ms(1000)),
    "sessions": lambda: changes().window(Session(ms(4))).aggregate("op", Ends, allowed_lateness=ms(1000)),
    "top of windows": lambda: changes().window(Tumbling(ms(10))).top("op", 1, by="cents", allowed_lateness=ms(1000)),
    "ties": lambda: changes().window(Tumbling(ms(10))).top("op", 1, by="weight", ties=True, allowed_lateness=ms(1000)),
}
OF_INSERTS = {
    "rows": applied,
    "rows of fields": lambda: applied(record=Row),
    "filled rows": lambda: applied(record=Row, ignore_nulls=True, corrections=FOREVER),
    "versions": with_versions,
    "versions of another field": lambda: with_versions(track=("shop",)),
    "last by time": lambda: sales().key_by("shop").last_by_time("op", state_ttl=FOREVER),
    "first by time": lambda: sales().key_by("shop").first_by_time("op", state_ttl=FOREVER),
    "over": lambda: sales().key_by("shop").over("op", Rest, rows=1, late=Late.CORRECT, keep=ms(1000)),
    "early results": lambda: early(Tumbling(ms(10))),
    "early results of sessions": lambda: early(Session(ms(4))),
}
SALES = st.builds(
    Sale,
    shop=st.sampled_from("aaab"),
    at=st.integers(0, 20),
    cents=st.integers(0, 30),
    weight=WEIGHTS,
    article=st.sampled_from("xxxxxd"),
    is_new=st.just(value=True),
)


@st.composite
def steps(draw, *, retracts):
    """Draw the steps of a stage, whose retractions each take back a sale that is there, as it came."""
    there, result = [], []
    for sizes in draw(st.lists(st.integers(1, 5), min_size=3, max_size=8)):
        given, kinds = [], []
        for _ in range(sizes):
            takes_back = retracts and there and draw(st.integers(0, 2)) == 0
            sale = there.pop(draw(st.integers(0, len(there) - 1))) if takes_back else draw(SALES)
            given.append(sale)
            kinds.append(draw(st.sampled_from([BEFORE, DELETE])) if takes_back else INSERT)
            there += [] if takes_back else [sale]
        result.append(Step(given, kinds, draw(st.integers(1, 3)), [], draw(st.booleans())))
    return result


def folded(operator, steps, *, by_columns):
    """Return the table behind the changes of an operator, of which each takes back a row that is there."""
    table, stage = ChangelogTable(), Stage(operator, by_columns=by_columns)
    for batch in ordered([*steps, Step([], [], 5000, [], ends_batch=True)], plain=()):
        for row in stage.run(*batch)[0]:
            table.apply(row.kind, row.record)
    return +table.rows


def is_folded(stream, steps):
    operator = stream.operators[-1]
    assert folded(operator, steps, by_columns=True) == folded(operator, steps, by_columns=False)


@pytest.mark.parametrize("operator", OF_CHANGES)
@examples(24)
@given(given=steps(retracts=True))
def test_changes_of_changes_are_taken_back(operator, given):
    is_folded(OF_CHANGES[operator](), given)


@pytest.mark.parametrize("operator", OF_INSERTS)
@examples(24)
@given(given=steps(retracts=False))
def test_changes_of_inserts_are_taken_back(operator, given):
    is_folded(OF_INSERTS[operator](), given)


class Offer(Struct, frozen=True):
    shop: str
    at: Timestamp
    weight: float | None


class Pair(Struct, frozen=True):
    left: float | None
    right: float | None

    @classmethod
    def of(cls, left: Offer | None, right: Offer | None) -> Pair:
        return cls(left and left.weight, right and right.weight)


def pairs_of(keeps_left, keeps_right, lefts, rights):
    pairs = [(left, right) for left in lefts for right in rights]
    pairs += [(left, None) for left in lefts if keeps_left and not rights]
    return [Pair.of(*pair) for pair in [*pairs, *((None, right) for right in rights if keeps_right and not lefts)]]


JOINS = {how: (partial(pairs_of, how.keeps_left, how.keeps_right), {"how": how, "emit": Pair.of}) for how in JoinType}
JOINS |= {
    "semi_join": (lambda lefts, rights: lefts if rights else [], {}),
    "anti_join": (lambda lefts, rights: [] if rights else lefts, {}),
}


def joined(join):
    pipeline = Pipeline("offers")
    left, right = (
        pipeline.source(name, Offer, event_time="at", row_kind="kind").key_by("shop") for name in ("left", "right")
    )
    method = left.join if isinstance(join, JoinType) else getattr(left, join)
    return method("op", right, state_ttl=FOREVER, **JOINS[join][1]).operators[-1].function


OFFERS = st.builds(Offer, st.just("a"), st.just(0), WEIGHTS)


@examples(150)
@given(
    join=st.sampled_from([*JOINS]),
    given=st.lists(st.tuples(st.booleans(), OFFERS, st.none() | st.integers(0, 9), st.booleans()), max_size=20),
)
def test_pairs_are_taken_back_as_emitted(join, given):
    there, table, expected = ([], []), ChangelogTable(), ChangelogTable()
    with KeyedHarness(joined(join), key=(attrgetter("shop"),) * 2) as harness:
        for is_left, offer, place, ends_batch in given:
            held, process = there[is_left], harness.process1 if is_left else harness.process2
            if place is not None and held:
                process(held.pop(place % len(held)), timestamp=0, kind=DELETE)
            else:
                held.append(offer)
                process(offer, timestamp=0)
            if ends_batch:
                harness.snapshot()
        for kind, row in harness.kinds():
            table.apply(kind, row)
    rights, lefts = there
    for row in JOINS[join][0](lefts, rights):
        expected.apply(INSERT, row)
    assert +table.rows == +expected.rows


class Money(Struct, frozen=True):
    key: str
    at: Timestamp
    amount: Annotated[Decimal, Digits(10, 2)]
    parts: list[float]


class Sized(Struct, frozen=True):
    size: Odd


@pytest.mark.parametrize(
    ("left", "right", "identical"),
    [
        (0.0, -0.0, False),
        (0.0, 0.0, True),
        (None, None, True),
        ("a", "a", True),
        (Row("a", 0.0), Row("a", -0.0), False),
        (Money("a", 1, Decimal("1.0"), [0.0]), Money("a", 1, Decimal("1.0"), [-0.0]), False),
        (Money("a", 1, Decimal("1.0"), []), Money("a", 1, Decimal("1.00"), []), False),
        (Sized(Odd.SMALL), Sized(Odd.LARGE), False),
        (Sized(Odd.SMALL), Sized(Odd.SMALL), True),
    ],
)
def test_equal_rows_may_be_written_otherwise(left, right, identical):
    assert are_equal(left, right)
    assert are_identical(left, right) is identical


FLOATS = st.sampled_from([0.0, -0.0, 1.5])
RECORDS = st.one_of(
    st.builds(Row, st.just("a"), WEIGHTS),
    st.builds(Pair, WEIGHTS, WEIGHTS),
    st.builds(Version, st.just("a"), WEIGHTS, st.integers(0, 1), st.just(0)),
    st.builds(Money, st.just("a"), st.just(0), st.sampled_from([Decimal(0), Decimal("0.0")]), st.lists(FLOATS)),
    st.none(),
    FLOATS,
)


@given(left=RECORDS, right=RECORDS)
def test_identical_rows_have_one_text(left, right):
    assert are_identical(left, right) is (are_equal(left, right) and TEXT_OF(left) == TEXT_OF(right))


@pytest.mark.parametrize(("values", "place"), [([1.5], None), ([0.0], 0), ([1.5, 0.0, -0.0], 2), ([-0.0, -0.0], 0)])
def test_identical_row_is_found_before_an_equal_one(values, place):
    assert place_among(values, -0.0) == place


ROWS = {
    "rows": lambda: applied(record=Row),
    "last": lambda: sales().key_by("shop").aggregate("op", LastOnly, state_ttl=FOREVER),
    "normalize": lambda: sales("kind").normalize("op", key=("shop",)),
    "extracts": lambda: (
        sales()
        .snapshot_changes("changes", key=("shop",), time="at", every=ms(1))
        .apply_changes("op", key=("shop",), sequence_by="at", record=Row, tombstones=FOREVER)
    ),
}


@pytest.mark.parametrize("operator", ROWS)
@examples(12)
@given(given=st.lists(st.sampled_from([0.0, -0.0, 1.5]), min_size=3, max_size=6), at_once=st.booleans())
def test_table_by_another_key_has_no_stale_row(operator, given, at_once):
    field = "last" if operator == "last" else "weight"
    rows = ROWS[operator]().upsert_materialize("by_weight", primary_key=(field, "shop"))
    harness = PipelineHarness(rows.sink("out"))
    events = [Sale("a", at, at, weight, "x", is_new=True) for at, weight in enumerate(given)]
    for part in [events] if at_once else [[event] for event in events]:
        harness.feed("sales", part)
        harness.run()
    harness.run(end_of_input=True)
    assert [repr(getattr(row, field)) for row in harness.sink("out")] == [repr(given[-1])]
    assert harness.table("quarantine").num_rows == 0
