"""Columns that the columns of a sink come from: by operator, by declaration, and as runs show it."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ChangelogMode, KeyedProcessFunction, Lifetime, Pipeline, RowKind, Timestamp
from headrace.api.column_reads import Kind
from headrace.api.graph import Keep
from headrace.operators import Count, Tumbling
from headrace.plan.column_lineage import lineage_of
from headrace.testing import PipelineHarness
from pipelines import flights
from tests.unit.plan.sale_steps import SALE, STEPS, Sale, pipeline_of
from tests.unit.support.fuzzing import examples

SALES = st.lists(
    st.builds(
        Sale,
        st.integers(0, 6),
        st.sampled_from("abc"),
        st.sampled_from("abc"),
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(0, 40),
    ),
    min_size=4,
    max_size=10,
)
OTHER = {"shop": "abc", "item": "abc"}


def _result(steps, keep, rows):
    harness = PipelineHarness(pipeline_of(steps, keep), bucket=2, files_per_batch=1, parallelism=1)
    for start in range(0, len(rows), 8):
        harness.feed("sales", rows[start : start + 8])
    harness.run(end_of_input=True)
    values = defaultdict(dict)
    for row in harness.sink("result"):
        for name in SALE:
            values[name][row.id] = getattr(row, name)
    return values


@examples(16)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    keep=st.sampled_from([None, Keep.FIRST, Keep.LAST]),
    rows=SALES,
    column=st.sampled_from([name for name in SALE if name != "at"]),
    seed=st.integers(0, 1 << 30),
)
def test_other_columns_never_change_a_column(steps, keep, rows, column, seed):
    lineage = lineage_of(pipeline_of(steps, keep)).sinks["result"]
    untouched = [name for name in SALE if all(origin.column != column for origin in lineage.of(name))]
    if not untouched:
        return
    others = _with_other(rows, column, random.Random(seed))
    before, after = _result(steps, keep, rows), _result(steps, keep, others)
    assert {name: before[name] for name in untouched} == {name: after[name] for name in untouched}


@pytest.mark.slow
@examples(1)
@given(rows=SALES, seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("step", sorted(STEPS))
def test_single_operator_reads_no_other_columns(step, rows, seed):
    chance = random.Random(seed)
    lineage = lineage_of(pipeline_of([step])).sinks["result"]
    before = _result([step], None, rows)
    for column in chance.sample(["id", "shop", "item", "amount", "rate"], 3):
        untouched = [name for name in SALE if all(origin.column != column for origin in lineage.of(name))]
        if untouched:
            after = _result([step], None, _with_other(rows, column, chance))
            assert {name: before[name] for name in untouched} == {name: after[name] for name in untouched}


def _with_other(rows, column, chance):
    """Return rows with other values of a column."""
    return [msgspec.structs.replace(row, **{column: chance.choice(OTHER.get(column, range(7)))}) for row in rows]


def _reads(*steps, keep=None):
    """Return the columns of the source that each column of the sink reads, with the first letter of each kind, and those of rows."""
    lineage = lineage_of(pipeline_of([*steps], keep)).sinks["result"]
    columns = {name: _shown(origins) for name, origins in lineage.columns.items()}
    return {name: shown for name, shown in columns.items() if shown != [f"{name} identity"]}, _shown(lineage.rows)


def _shown(origins):
    return sorted(f"{origin.column} {origin.kind.value}" for origin in origins)


ROWS = ["at sort", "id group by"]
"""What the sink of one row for each id reads."""


@pytest.mark.parametrize(
    ("step", "columns", "rows"),
    [
        ("filter", {}, [*ROWS, "amount filter"]),
        ("flat_map", {}, [*ROWS, "rate filter"]),
        ("union", {}, [*ROWS, "rate filter"]),
        ("first", {}, [*ROWS, "shop group by"]),
        ("last", {}, [*ROWS, "shop group by", "item group by"]),
        ("top", {}, [*ROWS, "shop group by", "amount sort"]),
        ("window top", {}, [*ROWS, "shop group by", "rate sort", "at window"]),
        ("normalize", {}, ["at sort", "id group by"]),
        (
            "map",
            {
                "id": ["id transformation"],
                "shop": ["item transformation"],
                "item": ["shop transformation"],
                "amount": ["rate transformation"],
                "rate": [],
                "at": ["at transformation"],
            },
            ROWS,
        ),
        (
            "cumulative",
            {
                "id": ["item aggregation"],
                "shop": ["shop transformation"],
                "item": ["at sort", "item aggregation"],
                "amount": ["amount aggregation"],
                "rate": ["at sort", "rate aggregation"],
                "at": ["at transformation"],
            },
            ["at sort", "at window", "item group by", "shop group by"],
        ),
        (
            "over",
            {
                "id": ["id transformation"],
                "shop": ["at sort", "item transformation"],
                "item": ["at sort", "shop aggregation"],
                "amount": ["amount aggregation"],
                "rate": ["at sort"],
                "at": [],
            },
            [*ROWS, "amount sort", "at window", "rate group by"],
        ),
        (
            "ranked",
            {
                "id": ["id transformation"],
                "shop": ["shop transformation"],
                "item": ["item transformation"],
                "amount": ["amount transformation"],
                "rate": ["at sort", "rate sort"],
                "at": [],
            },
            [*ROWS, "item group by", "rate sort"],
        ),
    ],
)
def test_operators_name_the_columns_they_read(step, columns, rows):
    assert _reads(step) == (columns, sorted(rows))


class Priced(msgspec.Struct, frozen=True):
    id: int
    cents: int


def _priced(sale: Sale) -> Priced:
    return Priced(sale.id, sale.amount * sale.rate)


def _source():
    return Pipeline("sales").source("sales", Sale, event_time="at")


def _priced_by(**declared):
    return lineage_of(_source().map(_priced, **declared).sink("result")).sinks["result"]


def test_undeclared_function_may_read_everything():
    origins = _priced_by().columns["cents"]
    assert {origin.column for origin in origins} == {*SALE}
    assert {(origin.kind, origin.by, origin.is_sure) for origin in origins} == {(Kind.TRANSFORMATION, "_priced", False)}


def test_declaration_narrows_columns():
    lineage = _priced_by(reads={"cents": ("amount", "rate")})
    assert {origin.column for origin in lineage.columns["cents"]} == {"amount", "rate"}
    assert all(origin.is_sure for origin in lineage.columns["cents"])
    assert {origin.column for origin in lineage.columns["id"]} == {*SALE}
    assert {origin.column for origin in _priced_by(reads=("id",)).columns["cents"]} == {"id"}
    assert _shown(_priced_by(keeps=("id",)).columns["id"]) == ["id identity"]


@pytest.mark.parametrize(
    ("reads", "error", "words"),
    [
        ("amount", TypeError, "reads takes several names, as in reads=\\('amount',\\), not 'amount'"),
        (7, TypeError, "reads takes several names"),
        (("amount", "cost"), ValueError, "reads has 'cost', and Sale has no such field; it has id, shop"),
        ({"total": ("amount",)}, ValueError, "reads has 'total', and Priced has no such field; it has id, cents"),
        ({"cents": "amount"}, TypeError, "reads takes several names"),
        ({"cents": ("",)}, ValueError, "reads has '', and Sale has no such field"),
        ({"cents": (7,)}, ValueError, "reads has 7, and Sale has no such field"),
        ({7: ("amount",)}, ValueError, "reads has 7, and Priced has no such field"),
    ],
)
def test_wrong_declarations_are_refused(reads, error, words):
    with pytest.raises(error, match=words):
        _source().map(_priced, reads=reads)


def test_filters_and_keys_declare_fields_alone():
    stream = _source()
    with pytest.raises(TypeError, match="not a mapping: nothing of it is a column"):
        stream.filter(lambda sale: sale.amount, reads={"amount": ("amount",)})
    with pytest.raises(ValueError, match="a field is no function: leave it out"):
        stream.key_by("shop", reads=("shop",))


def test_names_of_columns_are_those_of_the_job():
    lineage = lineage_of(
        _source().sink("result"), (("sales", (("amount", "Betrag €"),)),), (("result", (("amount", 'a"\n.b'),)),)
    )
    (origin,) = lineage.sinks["result"].columns['a"\n.b']
    assert (origin.column, origin.kind) == ("Betrag €", Kind.IDENTITY)


def test_side_outputs_have_their_input():
    counted = _source().key_by("shop").window(Tumbling(timedelta(milliseconds=10))).aggregate("counted", orders=Count())
    counted.sink("counts")
    sinks = lineage_of(counted.side("late", Sale).sink("late")).sinks
    assert _shown(sinks["late"].columns["amount"]) == ["amount identity"]
    assert _shown(sinks["counts"].columns["window_start"]) == ["at transformation"]
    assert _shown(sinks["counts"].columns["orders"]) == []


class Only(msgspec.Struct, frozen=True):
    id: int


class Each(KeyedProcessFunction[Only, Only]):
    """Emits a record for each change."""

    async def process(self, record, ctx, /):
        ctx.collect(record)


LOGS = {
    "additions": lambda stream: stream.additions(),
    "append": lambda stream: stream,
    "process": lambda stream: stream.key_by("id").process("each", Each(), emits=ChangelogMode.INSERT, reads=()),
}
"""What has a row for each change of a stream."""
CHANGELOGS = {
    "normalize": lambda s: s.normalize("step", key="id"),
    "top": lambda s: (
        s.drop_update_before("id", "shop").key_by("id").top("step", 2, by="amount", state_ttl=Lifetime.FOREVER)
    ),
    "join": lambda s: (
        s.drop_update_before("id")
        .key_by("id")
        .join("step", s.drop_update_before("id").key_by("id"), emit=_left, state_ttl=Lifetime.FOREVER, reads=("id",))
    ),
}


@pytest.mark.parametrize(
    ("step", "log"),
    [("normalize", "additions"), ("normalize", "append"), ("top", "append"), *(("join", log) for log in LOGS)],
)
def test_changes_depend_on_columns_that_differ(step, log):
    """No change is emitted from a row to an equal one, so the number of changes depends on columns that the stream no longer has."""
    source = Pipeline("sales").source("sales", Sale, event_time="at", row_kind="kind")
    pipeline = LOGS[log](CHANGELOGS[step](source).map(_only, keeps=("id",), reads=("id",))).sink("result")
    counts = set()
    for rate in (1, 2):
        harness = PipelineHarness(pipeline, parallelism=1)
        sales = [Sale(1, "a", "a", 1, 1, 1), Sale(1, "a", "a", 1, rate, 1)]
        harness.feed("sales", sales, kinds=[RowKind.INSERT, RowKind.UPDATE_AFTER])
        harness.run()
        counts.add(len(harness.sink("result")))
    assert len(counts) > 1
    assert "rate" in {origin.column for origin in lineage_of(pipeline).sinks["result"].rows}


@pytest.mark.parametrize(("appended", "is_read"), [((), False), (("result",), True)])
def test_log_of_a_table_depends_on_all_columns(appended, is_read):
    source = Pipeline("sales").source("sales", Sale, event_time="at", row_kind="kind")
    pipeline = source.normalize("rows", key="id").upsert_materialize("table", primary_key="id").sink("result")
    origins = lineage_of(pipeline, appended=appended).sinks["result"].of("id")
    assert ("rate" in {origin.column for origin in origins}) is is_read


def _left(left: Sale, right: Sale) -> Sale:
    del right
    return left


def _only(sale: Sale) -> Only:
    return Only(sale.id)


def test_pair_of_records_keeps_its_sides():
    class Pair(msgspec.Struct, frozen=True):
        sale: Sale
        other: Sale

    pipeline = Pipeline("pairs")
    sales, others = (pipeline.source(name, Sale, event_time="at") for name in ("sales", "others"))
    joined = sales.key_by("id").join("joined", others.key_by("rate"), emit=Pair, state_ttl=Lifetime.FOREVER)
    columns = lineage_of(joined.sink("pairs")).sinks["pairs"].columns
    assert {origin.source for origin in columns["sale"]} == {"sales"}
    assert {origin.source for origin in columns["other"]} == {"others"}


def test_deep_graph_of_wide_records_is_quick():
    wide = msgspec.defstruct("Wide", [("at", Timestamp), *((f"field_{number}", int) for number in range(150))])
    stream = Pipeline("wide").source("wide", wide, event_time="at")
    for _ in range(300):
        stream = stream.map(lambda row: row, record=wide)
    assert len(lineage_of(stream.sink("result")).sinks["result"].columns["field_7"]) == 151


def test_flights_declare_their_columns():
    sinks = lineage_of(flights.pipeline).sinks
    assert _shown(sinks["hourly_departures"].columns["departures"]) == ["flight_id transformation"]
    assert _shown(sinks["flight_board"].columns["aircraft"]) == ["flight_id transformation", "tailnum transformation"]
    assert all(origins for lineage in sinks.values() for origins in lineage.columns.values())
