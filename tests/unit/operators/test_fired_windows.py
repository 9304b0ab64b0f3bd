"""Windows that fire together over columns: state, timers, results and their places are those of windows that fire key by key."""

from __future__ import annotations

from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind, Struct, Timestamp
from headrace.operators import (
    Avg,
    Count,
    CountDistinct,
    Cumulative,
    First,
    Hopping,
    Last,
    Max,
    Min,
    Session,
    Sum,
    Tumbling,
    _fired_windows,
)
from headrace.operators._sliced_windows import SlicedAggregation
from headrace.state import values
from headrace.state.backend import HashMapBackend
from headrace.state.rocksdb import RocksDbBackend
from headrace.state.timers import Timer, timer_entry
from headrace.testing import PipelineHarness
from tests.unit.operators.test_group_columns import Sale
from tests.unit.operators.test_slice_columns import (
    BERLIN,
    PLAIN,
    SALES,
    SHOPS,
    Computed,
    Mixed,
    Stage,
    equals_single_records,
    ms,
    operator_of,
    ordered,
    sale,
    step,
    steps,
    weight_of,
)
from tests.unit.support.fuzzing import examples


def is_new(sale):
    return sale.is_new


class Merged(Struct, frozen=True):
    """A result that columns can merge, of values that they cannot all add."""

    window_end: Timestamp
    shop: str
    weight: Annotated[float | None, Sum("weight")]
    mean_weight: Annotated[float | None, Avg("weight", where=is_new)]
    mean_cents: Annotated[float | None, Avg("cents")]
    lightest: Annotated[float | None, Min("weight")]
    heaviest: Annotated[float | None, Max(weight_of)]
    least: Annotated[str | None, Min("article")]
    first: Annotated[str | None, First("article")]
    last: Annotated[float | None, Last("weight")]
    all_new: Annotated[bool, Min("is_new")]


class Pair(Struct, frozen=True):
    """A result of a key of two fields."""

    article: str
    window_end: Timestamp
    shop: str
    sales: Annotated[int, Count()]


SLICED = [
    Tumbling(ms(10)),
    Tumbling(ms(3), ms(1)),
    Hopping(ms(9), ms(4), ms(-1)),
    Hopping(ms(12), ms(2)),
    Cumulative(ms(12), ms(4)),
    BERLIN,
]


def fire_together(operator, steps, *, backends=(None, None), plain=SHOPS):
    """Check that no window of columns fires key by key, and that they leave behind what single records do; return the results."""
    by_columns, single = (
        Stage(operator, by_columns=taken, backend=backend)
        for taken, backend in zip((True, False), backends, strict=True)
    )
    results = []
    for rows, watermarks in ordered(steps, plain=plain):
        with mock.patch.object(SlicedAggregation, "on_timers", side_effect=AssertionError("fires key by key")):
            seen = by_columns.run(rows, watermarks)
        assert repr(seen) == repr(single.run(rows, watermarks))
        results += [result.record for result in seen[0]]
    return results


@pytest.mark.slow
@examples(80)
@given(steps(SALES), st.sampled_from(SLICED), st.sampled_from([Computed, Merged]), PLAIN)
def test_windows_fire_as_key_by_key(steps, windows, result, plain):
    equals_single_records(operator_of(windows, result), [*steps, step(later=4 * 86_400_000)], plain=plain)


@examples(20)
@given(steps(SALES, st.sampled_from(RowKind)), st.sampled_from(SLICED), st.sampled_from([Computed, Merged]), PLAIN)
def test_keys_taken_singly_fire_beside_others(steps, windows, result, plain):
    operator = operator_of(windows, result, row_kind="kind")
    equals_single_records(operator, [*steps, step(later=50)], plain=plain)


@examples(20)
@given(steps(SALES), st.sampled_from(SLICED), st.integers(1, 20))
def test_windows_fire_in_parts(steps, windows, most):
    with mock.patch.object(_fired_windows, "MOST_ROWS", most):
        equals_single_records(operator_of(windows, Merged), [*steps, step(later=90_000_000)], plain=SHOPS)


GIVEN = [
    step(sale(-20, shop="a"), sale(-18, shop="b"), later=14),
    step(sale(-15, shop="a"), sale(-1, shop="b"), later=14, ends_batch=True),
    step(later=1, ends_batch=True),
    step(sale(2, shop="b"), later=5, ends_batch=True),
    step(sale(7, shop="b"), sale(7, shop='c"'), later=2),
    step(sale(9, shop="b"), later=25),
]
"""Windows with slices of several micro-batches; some end in micro-batches without records of their key, or without any."""


@pytest.mark.parametrize("windows", SLICED[:-1])
@pytest.mark.parametrize("result", [Computed, Merged])
def test_windows_of_all_keys_fire_together(windows, result, tmp_path):
    operator = operator_of(windows, result)
    assert fire_together(operator, GIVEN)
    backends = [RocksDbBackend(tmp_path / str(number)) for number in (1, 2)]
    assert fire_together(operator, GIVEN, backends=backends)
    for backend in backends:
        backend.close()


def test_keys_of_several_fields_fire_together():
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop", "article")
    harness = PipelineHarness(sales.window(Hopping(ms(4), ms(2))).aggregate("totals", Pair).sink("log"), bucket=3)
    harness.feed("sales", [Sale("a", at, 1, 1.0, name, is_new=False) for at in range(9) for name in ("b", "c")])
    with mock.patch.object(SlicedAggregation, "on_timers", side_effect=AssertionError("fires key by key")):
        harness.run(end_of_input=True)
    counts = {2: 2, 4: 4, 6: 4, 8: 4, 10: 3, 12: 1}
    assert {*harness.sink("log")} == {Pair(article, end, "a", counts[end]) for end in counts for article in "bc"}


def test_large_keys_are_read_name_by_name(tmp_path):
    given = [step(*map(sale, range(0, 30, 3)), later=31, ends_batch=True), step(sale(31), later=50)]
    for page in (3, 4096):
        backends = [RocksDbBackend(tmp_path / f"{page} {number}") for number in (1, 2)]
        with mock.patch.object(values, "PAGE", page):
            assert fire_together(operator_of(Hopping(ms(60), ms(3)), Computed), given, backends=backends)
        for backend in backends:
            backend.close()


def test_keys_are_scanned_once(tmp_path):
    backend = RocksDbBackend(tmp_path / "state")
    stage = Stage(operator_of(Hopping(ms(12), ms(3)), Computed), by_columns=True, backend=backend)
    with mock.patch.object(backend, "scan", wraps=backend.scan) as scanned:
        for batch in ordered([step(*map(sale, range(9)), sale(4, shop="b"), later=60)], plain=SHOPS):
            stage.run(*batch)
    assert sum(call.args[0].startswith(b"v") for call in scanned.mock_calls) == 2
    backend.close()


def test_fired_windows_register_no_timer():
    stage = Stage(operator_of(Hopping(ms(12), ms(3)), Computed), by_columns=True)
    ((rows, watermarks),) = ordered([step(*map(sale, range(9)), later=38)], plain=SHOPS)
    with mock.patch("headrace.state.timers.TimerService.register", autospec=True) as register:
        emitted, *_, fired, _ = stage.run(rows, watermarks)
    assert {call.args[1].timestamp for call in register.mock_calls} == {11, 14, 17}
    assert (len(emitted), fired) == (3, 3)


def windows_with(timers, result=Computed, windows=SLICED[2]):
    """Return backends that have timers that somebody has set by hand, and none of those of the windows."""
    backends = HashMapBackend(), HashMapBackend()
    for backend, by_columns in zip(backends, (True, False), strict=True):
        stage = Stage(operator_of(windows, result), by_columns=by_columns, backend=backend)
        for batch in ordered([step(sale(-20), sale(-16), later=5)], plain=SHOPS):
            stage.run(*batch)
        backend.write_batch([(entry, None) for entry, _ in [*backend.items()] if entry.startswith(b"t")])
        backend.write_batch([(timer_entry(Timer(at, b'"a"')), b"") for at in timers])
    return backends


@pytest.mark.parametrize("timers", [[], [-14], [-12], [-15, -13, -9], [100], [*range(-30, 30)]])
@pytest.mark.parametrize("records", [(), (-16, -12)])
def test_timers_set_by_hand_fire_alike(timers, records):
    given = [step(*map(sale, records), later=20), step(later=200)]
    equals_single_records(operator_of(SLICED[2], Computed), given, plain=SHOPS, backends=windows_with(timers))


@pytest.mark.parametrize(
    "weights", [[-0.0], [-0.0, -0.0], [0.1, 0.2, 0.3, 1e16], [None, 0.1], [None], [1e308, 1e308], [-1e308, -1e308, 1.0]]
)
def test_floats_are_merged_in_order(weights):
    given = [
        step(*(Sale("a", at * 2 - 20, 1, weight, "x", is_new=True) for at, weight in enumerate(weights)), later=60)
    ]
    equals_single_records(operator_of(Hopping(ms(8), ms(2)), Merged), given, plain=SHOPS)


@pytest.mark.parametrize("cents", [[1 << 53, 1], [(1 << 63) - 1, 1], [1 << 61, 1 << 61, 1 << 61], [-(1 << 63), -1]])
def test_sums_beyond_their_bits_fire_key_by_key(cents):
    given = [step(*(sale(at * 2 - 20, number) for at, number in enumerate(cents)), later=60)]
    equals_single_records(operator_of(Hopping(ms(8), ms(2)), Computed), given, plain=SHOPS)


class Counted(Struct, frozen=True):
    shop: str
    window_start: Timestamp
    sales: Annotated[int, Count()]
    articles: Annotated[int, CountDistinct("article")]


class Fewer(Struct, frozen=True):
    """The result without the field whose values were in pieces."""

    shop: str
    window_start: Timestamp
    sales: Annotated[int, Count()]


def test_pieces_of_an_earlier_result_are_removed():
    sales = [Sale("a", at % 9, 1, None, f"{at}", is_new=False) for at in range(1200)]
    stages = [Stage(operator_of(Tumbling(ms(10)), Counted), by_columns=taken) for taken in (True, False)]
    batches = [*ordered([step(*sales, later=31, ends_batch=True), step(later=40)], plain=SHOPS)]
    for stage in stages:
        stage.run(*batches[0])
        stage.operator = operator_of(Tumbling(ms(10)), Fewer)
    seen, single = (stage.run(*batches[1]) for stage in stages)
    assert repr(seen) == repr(single)
    assert [len(stage.backend._entries) for stage in stages] == [0, 0]


class Checked(Struct, frozen=True):
    shop: str
    sales: Annotated[int, Count()]

    def __post_init__(self):
        if self.sales > 1:
            raise ValueError("too many")


@pytest.mark.parametrize(
    ("windows", "result", "lateness", "together"),
    [
        (Tumbling(ms(10)), Computed, 0, True),
        (Hopping(ms(10), ms(5)), Merged, 0, True),
        (BERLIN, Fewer, 0, True),
        (Hopping(ms(10), ms(5)), Computed, 1, False),
        (Tumbling(ms(10)), Mixed, 0, False),
        (Tumbling(ms(10)), Counted, 0, False),
        (Tumbling(ms(10)), Checked, 0, False),
        (Tumbling(ms(10)), 2, 0, False),
        (Session(ms(10)), Computed, 0, False),
    ],
)
def test_windows_that_fire_together(windows, result, lateness, together):
    assert operator_of(windows, result, lateness=lateness).function.fires_columns is together
