"""Windows over columns: state, timers, results and their places are those of single records."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from itertools import chain, pairwise
from operator import attrgetter
from typing import Annotated, Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AggregateFunction, Digits, Pipeline, RowKind, Struct, TimeDomain, Timestamp
from headrace.api.batches import KeyedColumns
from headrace.errors import UserFunctionError
from headrace.execution.element import Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.operators import (
    ArgMax,
    Avg,
    Calendar,
    CalendarUnit,
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
    _part_columns,
)
from headrace.operators._sliced_windows import SlicedAggregation
from headrace.records.order import output_order, record_order, timer_order
from headrace.records.record_columns import to_struct_array
from headrace.run import column_work
from headrace.run.column_work import ColumnWork
from headrace.run.rows import ColumnarRows, elements_of
from headrace.run.transit import transit_table
from headrace.state.accumulators import AccumulatorStore
from headrace.state.backend import HashMapBackend
from headrace.state.codec import decode_key
from headrace.state.key_columns import key_json_column
from headrace.state.rocksdb import RocksDbBackend
from headrace.testing import PipelineHarness
from tests.unit.operators.test_group_columns import PRICES, Sale
from tests.unit.support.fuzzing import examples

AT_ONCE = 3
"""Number of rows in a batch of Arrow."""


def ms(number):
    return timedelta(milliseconds=number)


def is_cheap(sale):
    return sale.cents is None or sale.cents < 2


def article_of(sale):
    if sale.article == "z":
        raise ValueError("no such article")
    return sale.article


def weight_of(sale):
    return float("nan") if sale.article == "n" else sale.weight


class Computed(Struct, frozen=True):
    """A result that columns can compute."""

    shop: str
    window_start: Timestamp
    sales: Annotated[int, Count()]
    cheap: Annotated[int, Count(where=is_cheap)]
    priced: Annotated[int, Count("cents")]
    cents: Annotated[int | None, Sum("cents")]
    cheap_cents: Annotated[int | None, Sum("cents", where=is_cheap)]
    mean: Annotated[float | None, Avg("cents")]
    cheapest: Annotated[int | None, Min("cents")]
    dearest: Annotated[int | None, Max("cents", where=is_cheap)]
    any_new: Annotated[bool, Max("is_new")]
    last: Annotated[int | None, Last("cents")]
    latest: Annotated[Timestamp, Max("at")]


class Mixed(Struct, frozen=True):
    """A result with fields that need records."""

    shop: str
    window_start: Timestamp
    window_end: Timestamp
    weight: Annotated[float | None, Sum("weight")]
    mean_weight: Annotated[float | None, Avg("weight", where=is_cheap)]
    lightest: Annotated[float | None, Min("weight")]
    heaviest: Annotated[float | None, Max(weight_of)]
    weights: Annotated[int, CountDistinct("weight")]
    articles: Annotated[int, CountDistinct("article")]
    cheap_articles: Annotated[int, CountDistinct("article", where=is_cheap)]
    least: Annotated[str | None, Min(article_of)]
    dearest: Annotated[str | None, ArgMax("article", by="cents")]
    price: Annotated[Decimal | None, Digits(38, 2), Sum("price")]
    lowest: Annotated[Decimal | None, Digits(22, 3), Min("price")]
    first: Annotated[str | None, First("article")]
    last: Annotated[float | None, Last("weight")]


class Articles(AggregateFunction[Sale, list[str], str]):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator, /):
        return [*accumulator, value.article]

    def get_result(self, accumulator, /):
        return "".join(accumulator)

    def merge(self, one, other, /):
        return one + other


class Own(Struct, frozen=True):
    shop: str
    articles: Annotated[str, Articles()]


SHOPS = ["a", "b", 'c"']
PLAIN = st.lists(st.sampled_from(SHOPS))
SALES = st.builds(
    Sale,
    shop=st.sampled_from(SHOPS),
    at=st.integers(-20, 20),
    cents=st.none() | st.integers(-5, 5) | st.sampled_from([1 << 53, (1 << 53) + 1, -(1 << 63), (1 << 63) - 1]),
    weight=st.none() | st.sampled_from([0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16]),
    article=st.none() | st.sampled_from(["", "a", "ab", "é", "\U0001f600"]),
    is_new=st.booleans(),
    price=st.none() | PRICES,
)
UNUSUAL = st.builds(
    Sale,
    shop=st.just("a"),
    at=st.integers(-20, 20),
    cents=st.just(1),
    weight=st.just(1.0),
    article=st.sampled_from(["z", "n", "a"]),
    is_new=st.just(value=True),
)
BERLIN = Calendar(CalendarUnit.DAY, zone="Europe/Berlin")
WINDOWS = [
    Tumbling(ms(10)),
    Tumbling(ms(40), ms(-3)),
    Hopping(ms(9), ms(4), ms(-1)),
    Cumulative(ms(12), ms(4)),
    BERLIN,
    Session(ms(3)),
    Session(ms(9)),
]


class Step(NamedTuple):
    """Records, and the watermark behind them: how much later than the last one, with effects of timers that it fires upstream."""

    sales: list[Any]
    kinds: list[RowKind]
    later: int
    effects: list[Any]
    ends_batch: bool


ADDED = st.just(RowKind.INSERT)


def steps(sales, kinds=ADDED):
    """Draw the steps of a stage."""
    return st.lists(
        st.builds(
            Step,
            st.lists(sales, max_size=8),
            st.lists(ADDED, min_size=8, max_size=8) | st.lists(kinds, min_size=8, max_size=8),
            st.integers(1, 15),
            st.lists(sales, max_size=2),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )


def ordered(steps, *, plain):
    """Yield the rows of each micro-batch, as places, records, times and kinds, with its watermarks. Those of `plain` shops are additions, and in time."""
    ordinal, watermark, rows, watermarks = 1, -30, [], []
    for step in steps:
        for sale, kind in zip(step.sales, step.kinds, strict=False):
            at, number = (max(sale.at, watermark + 1), 0) if sale.shop in plain else (sale.at, int(kind))
            rows.append((record_order(ordinal), sale, at, number))
            ordinal += 1
        later = watermark + step.later
        place = Watermark(record_order(ordinal), later)
        for number, sale in enumerate(step.effects):
            at = min(max(sale.at, watermark + 1), later)
            rows.append((output_order(timer_order(place.order, at, b'"x"'), number), sale, at, 0))
        watermarks.append(place)
        watermark = later
        if step.ends_batch:
            yield sorted(rows), watermarks
            rows, watermarks = [], []
    yield sorted(rows), watermarks


def batches_of(rows):
    """Return rows as a keyed task gets them."""
    if not rows:
        return []
    orders, sales, times, kinds = zip(*rows, strict=True)
    records = to_struct_array(sales, Sale)
    places = pa.array(orders, pa.binary()), pa.array(times, pa.int64()), pa.array(kinds, pa.int32())
    table = transit_table((Sale,), 0, ColumnarRows(Sale, *places, records), key_json_column(records.field("shop")), 8)
    return table.combine_chunks().to_batches(max_chunksize=AT_ONCE)


class Stage:
    """One keyed stage, micro-batch by micro-batch. `alone` has the shops in each whose records columns have left."""

    def __init__(self, operator, *, by_columns, backend=None):
        self.operator, self.by_columns = operator, by_columns
        self.backend, self.watermark, self.fired = backend or HashMapBackend(), None, None
        self.alone = []

    def run(self, rows, watermarks):
        """Return all that a micro-batch leaves behind, or its error."""
        last = watermarks[-1].timestamp if watermarks else self.watermark
        process = KeyedProcess(
            self.operator,
            self.backend,
            records=(Sale,),
            watermark=self.watermark,
            last_watermark=last,
            timers_fired=self.fired,
            stage=1,
        )
        columns, left = None, batches_of(rows)
        if self.by_columns and getattr(self.operator.function, "takes_columns", False):
            work = ColumnWork(self.operator, process, watermarks, self.watermark, (Sale,))
            with mock.patch.object(column_work, "ROWS_AT_ONCE", AT_ONCE):
                columns, left = work.run(left)
        elements = [elements_of(batch, (Sale,)) for batch in left]
        self.alone.append(sorted({decode_key(element.key_json) for element in chain(*elements)}))
        try:
            process.run(elements, watermarks)
        except UserFunctionError as error:
            return [line for line in str(error).splitlines() if not line.startswith("  ")]  # without the traceback
        changes = [(store, [*changes]) for store, changes in process.changes()]
        timers = process.timers.changes()
        for store, entries in changes:
            self.backend.write_batch(store.writes(entries))
        self.backend.write_batch(process.timers.writes(timers))
        self.watermark, self.fired = last, process.timers.fired_until()
        states = sorted(repr(_without_time(entry)) for _, entries in changes for entry in entries)
        emitted = [*process.emitted, *(() if columns is None else columns.emitted())]
        results = sorted((row._replace(kind=RowKind(row.kind)) for row in emitted), key=attrgetter("order"))
        refused = [(refused.order, refused.record) for refused in process.refused]
        return results, process.side_outputs, states, sorted(timers), process.metrics, process.timers.fired, refused


def _without_time(change):
    """Return a change without the time of an entry that is removed: bundles may leave out what came before the removal."""
    return change._replace(stamp=0) if change.raw is None else change


def operator_of(windows, result, *, lateness=0, row_kind=None):
    """Return the operator of a window's aggregates, or of its first records: `result` is the number of them, negative with ties."""
    sales = Pipeline("shop").source("sales", Sale, event_time="at", row_kind=row_kind).key_by("shop").window(windows)
    if isinstance(result, int):
        chosen = sales.top("totals", abs(result), by="cents", ties=result < 0, allowed_lateness=ms(lateness))
    else:
        chosen = sales.aggregate("totals", result, allowed_lateness=ms(lateness))
    late = chosen.side_output("late", Sale, sink="late")
    return next(operator for operator in late.operators if operator.name == "totals")


def equals_single_records(operator, steps, *, plain=(), backends=(None, None)):
    """Check that columns leave behind what single records do, and take all plain shops or nothing; return the shops of each micro-batch that they left."""
    by_columns, single = (
        Stage(operator, by_columns=taken, backend=backend)
        for taken, backend in zip((True, False), backends, strict=True)
    )
    for rows, watermarks in ordered(steps, plain=plain):
        seen = by_columns.run(rows, watermarks)
        assert repr(seen) == repr(single.run(rows, watermarks))
        left = by_columns.alone[-1]
        assert left == single.alone[-1] or not {*left} & {*plain}
        if isinstance(seen, list):
            break
    return by_columns.alone


@pytest.mark.slow
@examples(60)
@given(
    steps(SALES),
    st.sampled_from(WINDOWS),
    st.sampled_from([Computed, Mixed, 2, -1]),
    st.sampled_from([0, 8]),
    PLAIN,
)
def test_columns_equal_single_records(steps, windows, result, lateness, plain):
    equals_single_records(operator_of(windows, result, lateness=lateness), steps, plain=plain)


@examples(40)
@given(
    steps(SALES),
    st.sampled_from(WINDOWS),
    st.sampled_from([0, 8]),
    PLAIN,
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_many_values_move_at_same_record(steps, windows, lateness, plain, most, every):
    operator = operator_of(windows, Mixed, lateness=lateness)
    with (
        mock.patch("headrace.operators._result_record.MOST_IN_ROW", most),
        mock.patch("headrace.operators._window_pieces.CHANGES", every),
    ):
        equals_single_records(operator, [*steps, step(later=4 * 86_400_000)], plain=plain)


@pytest.mark.parametrize("windows", [Tumbling(ms(10_000)), Hopping(ms(10_000), ms(5000))])
def test_columns_move_many_values(windows):
    sales = [Sale("a", at, at % 7, 0.5, f"article {at}", is_new=False) for at in range(3000)]
    given = [step(*part, later=1, ends_batch=True) for part in (sales[:700], sales[700:720], sales[720:])]
    operator = operator_of(windows, Mixed)
    assert equals_single_records(operator, given) == [[], [], [], []]
    stage = Stage(operator, by_columns=True)
    for batch in ordered(given, plain=()):
        stage.run(*batch)
    namespaces = {entry.rpartition(b"\x00")[2] for entry, _ in stage.backend.items()}  # noqa: PERF102 - no dict
    assert {b"0", b"0 2"} <= namespaces  # four moves, each of 512 values


@examples(15)
@given(steps(SALES | UNUSUAL), st.sampled_from(WINDOWS))
def test_errors_are_those_of_single_records(steps, windows):
    equals_single_records(operator_of(windows, Mixed), steps, plain=SHOPS)


@examples(15)
@given(steps(SALES, st.sampled_from(RowKind)), st.sampled_from(WINDOWS), st.sampled_from([Computed, Mixed, 2]), PLAIN)
def test_shops_with_retractions_are_taken_alone(steps, windows, result, plain):
    equals_single_records(operator_of(windows, result, row_kind="kind"), steps, plain=plain)


def sale(at, cents=1, shop="a"):
    return Sale(shop, at, cents, 0.1, "x", is_new=False)


def step(*sales, later, effects=(), ends_batch=False):
    return Step([*sales], [RowKind.INSERT] * len(sales), later, [*effects], ends_batch)


def visits(*starts, articles=700):
    """Return sales of a session of 1,000 ms behind each start, each with an article of its own."""
    return [
        Sale("a", start + at, 1, 0.5, f"article {start + at}", is_new=False)
        for start in starts
        for at in range(articles)
    ]


@pytest.mark.parametrize(
    "given",
    [
        [
            step(*visits(0), later=1, ends_batch=True),
            step(*visits(2000), later=1, ends_batch=True),
            step(*visits(1000), later=1),
        ],
        [step(*visits(0, articles=2000), *visits(5000, articles=1400), sale(3500), later=1)],
        [
            step(*visits(0, articles=1600), *visits(3000, 5000), later=1, ends_batch=True),
            step(sale(2400), sale(4400), *visits(5800), later=1),
        ],
        [
            step(*visits(0, articles=1600), *visits(3000), later=1, ends_batch=True),
            step(sale(2400), later=9000, ends_batch=True),
        ],
    ],
)
def test_merged_sessions_merge_their_pieces(given):
    operator = operator_of(Session(ms(1000)), Mixed)
    given = [*given, step(later=9000)]
    assert not any(equals_single_records(operator, given))


@pytest.mark.parametrize("windows", WINDOWS[2:])
@pytest.mark.parametrize("result", [Computed, Mixed, 1])
def test_records_in_time_are_taken_as_columns(windows, result):
    times = range(-28, 40, 4)
    given = [step(*(sale(before), sale(at)), later=4, ends_batch=at % 8 == 0) for before, at in pairwise(times)]
    alone = equals_single_records(operator_of(windows, result), given)
    assert not any(alone)


MERGING = [
    step(sale(0), sale(16), sale(32), sale(48, shop="b"), later=20),
    step(sale(8), sale(24), sale(20), sale(-5, shop="b"), later=5, ends_batch=True),
    step(sale(40), sale(60), sale(58), sale(70, shop="b"), later=5),
    step(sale(50), sale(66), later=40, ends_batch=True),
    step(sale(90), later=40),
]
"""Records that merge sessions with a gap of 9 ms, also merged and stored ones, and end others."""


@pytest.mark.parametrize("result", [Computed, Mixed, 2])
def test_sessions_merge_on_each_backend(result, tmp_path):
    operator = operator_of(Session(ms(9)), result)
    for name, make in {"memory": lambda _: HashMapBackend(), "rocksdb": RocksDbBackend}.items():
        backends = [make(tmp_path / f"{name}-{number}") for number in (1, 2)]
        alone = equals_single_records(operator, MERGING, plain=SHOPS, backends=backends)
        assert alone == [[], [], []]
        for backend in backends:
            backend.close()


@pytest.mark.parametrize("result", [Computed, Mixed, 2])
def test_first_record_merges_stored_sessions(result):
    given = [step(sale(0), sale(16), later=5, ends_batch=True), step(sale(8), later=9)]
    assert equals_single_records(operator_of(Session(ms(9)), result), given, plain=SHOPS) == [[], []]


def merged_in_turn(number):
    """Return records of which each second one merges the session of all before it with a new one."""
    return [sale(0), *(sale(at) for start in range(16, 16 * number + 1, 16) for at in (start, start - 8))]


@pytest.mark.parametrize(("merges", "others", "alone"), [(7, 0, []), (8, 0, ["a"]), (8, 2683, [])])
def test_few_records_behind_many_merges_come_singly(merges, others, alone):
    given = [step(*merged_in_turn(merges), *(sale(at, shop="b") for at in range(others)), later=40)]
    assert equals_single_records(operator_of(Session(ms(9)), Mixed), given) == [alone]


def test_merges_decode_records_once():
    stage = Stage(operator_of(Session(ms(9)), Mixed), by_columns=True)
    ((rows, watermarks),) = ordered([step(*merged_in_turn(7), later=40)], plain=SHOPS)
    with mock.patch.object(column_work, "elements_of", wraps=elements_of) as decoded:
        stage.run(rows, watermarks)
    assert (len(decoded.mock_calls), stage.alone) == (len(batches_of(rows)), [[]])


@pytest.mark.parametrize("by_columns", [True, False])
def test_old_timers_end_no_session_of_another_gap(by_columns):
    """The session of a name was to end earlier, when the job had a gap of 5 ms."""
    stage = Stage(operator_of(Session(ms(5)), Computed), by_columns=by_columns)
    given = [step(sale(-20), later=5), step(sale(-20), sale(-10), later=10), step(later=40)]
    micro_batches = ordered([part._replace(ends_batch=True) for part in given], plain=SHOPS)
    stage.run(*next(micro_batches))
    stage.operator = operator_of(Session(ms(20)), Computed)
    emitted = [result for batch in micro_batches for result in stage.run(*batch)[0]]
    assert [(result.record.window_start, result.record.sales) for result in emitted] == [(-20, 2)]


def test_sessions_without_scans_are_taken_alone():
    backends = HashMapBackend(), HashMapBackend()
    for backend in backends:
        backend.is_in_memory = backend.scans_keys = False
    alone = equals_single_records(operator_of(Session(ms(9)), Computed), MERGING, plain=SHOPS, backends=backends)
    assert alone == [["a", "b"], ["a", "b"], ["a"]]


@pytest.mark.parametrize(("passed", "alone"), [(4, []), (5, ["a"]), (6, ["a"])])
@pytest.mark.parametrize("gap", [1, 9])
def test_session_record_behind_its_time_is_taken_alone(gap, passed, alone):
    given = [step(sale(5), later=30 + passed), step(sale(5), later=20)]  # its session may end behind the watermark
    assert equals_single_records(operator_of(Session(ms(gap)), Computed), given) == [alone]


def test_sessions_that_pass_are_never_stored():
    stage = Stage(operator_of(Session(ms(3)), Computed), by_columns=True)
    ((rows, watermarks),) = ordered([step(*map(sale, range(0, 50, 5)), later=100)], plain=SHOPS)
    with mock.patch.object(AccumulatorStore, "values_of", side_effect=lambda names, _: [None] * len(names)) as read:
        emitted, *_ = stage.run(rows, watermarks)
    assert (len(emitted), read.mock_calls) == (10, [mock.call([], ())])


def test_record_behind_its_first_window_is_taken_alone():
    given = [step(sale(-25), later=13), step(sale(-20), later=20)]
    assert equals_single_records(operator_of(Hopping(ms(9), ms(3)), Computed), given) == [["a"]]


@pytest.mark.parametrize(("passed", "alone"), [(8, []), (9, ["a"])])
@pytest.mark.parametrize("windows", [WINDOWS[0], Cumulative(ms(20), ms(10)), Hopping(ms(20), ms(10))])
def test_window_has_ended_at_its_last_timestamp(windows, passed, alone):
    given = [step(sale(5), later=30 + passed), step(sale(5), later=30)]
    assert equals_single_records(operator_of(windows, Computed), given) == [alone]


def test_effects_of_timers_are_in_time():
    given = [step(later=40, effects=[sale(at) for at in range(-20, 10)]), step(later=10)]
    assert equals_single_records(operator_of(WINDOWS[0], Computed), given) == [[]]


@pytest.mark.parametrize(
    ("options", "result", "expected"),
    [
        ({}, Computed, True),
        ({"allowed_lateness": ms(5)}, Mixed, True),
        ({"early": ms(5)}, Computed, False),
        ({}, Own, False),
    ],
)
def test_early_results_and_own_aggregates_need_records(options, result, expected):
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop").window(WINDOWS[0])
    assert sales.aggregate("totals", result, **options).operators[-1].function.takes_columns is expected


def test_windows_of_processing_time_need_records():
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop")
    windows = sales.window(WINDOWS[0], time=TimeDomain.PROCESSING_TIME)
    assert not windows.aggregate("totals", Computed).operators[-1].function.takes_columns


def test_too_many_objects_are_taken_one_by_one(monkeypatch):
    monkeypatch.setattr(_part_columns, "MOST_OBJECTS", 1)
    given = [step(sale(0), sale(1), later=15)]
    assert equals_single_records(operator_of(WINDOWS[0], Mixed), given) == [["a"]]
    assert equals_single_records(operator_of(WINDOWS[0], Computed), given) == [[]]


def test_tasks_take_columns():
    operator = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop").window(WINDOWS[0])
    harness = PipelineHarness(operator.aggregate("totals", Computed).sink("log"), bucket=4)
    harness.feed("sales", [sale(at, shop=shop) for at in range(30) for shop in "ab"])
    with mock.patch.object(SlicedAggregation, "process_bundle", side_effect=AssertionError):
        harness.run(end_of_input=True)
    assert sorted((row.shop, row.sales) for row in harness.sink("log")) == [("a", 10)] * 3 + [("b", 10)] * 3


def test_many_keys_have_own_slices():
    times = pa.array([5, 25, 15, 5], pa.int64())
    columns = KeyedColumns(
        records=pa.array([{}] * 4, pa.struct([])),
        timestamps=times,
        kinds=pa.array([0] * 4, pa.int32()),
        watermarks=np.full(4, -1),
        bundled=lambda: iter(()),
        objects=lambda _: iter(()),
        columns_of=lambda _: pa.array([], pa.struct([])),
        keys=range(1 << 31),
        key_numbers=pa.array([0, 1 << 30, (1 << 31) - 1, 0], pa.int32()),
        result_type=pa.struct([]),
        results_of=lambda _: pa.array([], pa.struct([])),
    )
    by_slice = operator_of(WINDOWS[0], Computed).function.in_namespaces(columns)
    assert [*zip(by_slice.keys, by_slice.namespaces, strict=True)] == [(0, "0"), (1 << 30, "20"), ((1 << 31) - 1, "10")]
    assert by_slice.key_numbers.to_pylist() == [0, 1, 2, 0]
