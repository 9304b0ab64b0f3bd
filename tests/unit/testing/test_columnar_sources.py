"""Source rows that stay columns, and rows that become records for a step, give equal results."""

from __future__ import annotations

import functools
import re
from datetime import timedelta
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, MapState, Pipeline, RowKind, Struct, Timestamp, ValueState
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples


class Line(Struct, frozen=True):
    item: str
    price: float | None = None


class Row(Struct, frozen=True):
    text: str | None
    number: int | None
    share: float | None
    yes: bool | None
    raw: bytes | None
    side: Literal["buy", "sell"] | None
    at: Timestamp
    seen: Timestamp | None = None
    note: str = "none"


class Nested(Row, frozen=True):
    lines: tuple[Line, ...] = ()
    extra: dict[str, int] | None = None


class Counts(KeyedProcessFunction[Row, Row]):
    """Keeps the last row of a key and the count of each text; emits the count again when event time has passed."""

    last = ValueState("last", Row)
    texts = MapState("texts", str, int)

    async def process(self, row, ctx, /):
        count = await self.texts.get(row.note) or 0
        await self.texts.put(row.note, count + 1)
        await self.last.update(row)
        ctx.timers.register_event_time(row.at + 3)
        ctx.collect(row, ctx.row_kind)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(await self.last.value())


def same(row):
    return row


def pipeline(record, keys, order_by, *, is_step):
    """Return three uses of a source, with a step in between that changes nothing, or without steps."""
    built = Pipeline("job")
    rows = built.source(
        "rows", record, event_time="at", order_by=order_by, row_kind="op", out_of_orderness=timedelta(milliseconds=2)
    )
    if is_step:
        rows = rows.map(same, record=record)
    rows.key_by(*keys).process("counts", Counts()).sink("counts")
    rows.upsert_materialize("latest", primary_key=("text", "number")).sink("latest")
    rows.key_by(key_of).process("others", Counts()).sink("others")
    return built


def key_of(row) -> str | None:
    return None if row.number == 0 else f"{row.text}/{row.side}"


FIELDS = {
    "text": (pa.string(), st.sampled_from(["a", "b", 'quote"\\', "line\nfeed", "ü\u2028", "", None])),
    "number": (pa.int64(), st.sampled_from([0, 1, -1, (1 << 63) - 1, -(1 << 63), None])),
    "share": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, 1e300, 1e-7, float("nan"), float("inf"), None])),
    "yes": (pa.bool_(), st.sampled_from([True, False, None])),
    "raw": (pa.binary(), st.sampled_from([b"", b"\xff\x00", b"a", None])),
    "side": (pa.string(), st.sampled_from(["buy", "sell", "both", None])),
    "at": (pa.int64(), st.one_of(st.integers(-5, 20), st.sampled_from([None, 1 << 60]))),
    "seen": (pa.timestamp("us", tz="UTC"), st.sampled_from([0, 1_577_836_800_123_000, None])),
    "op": (pa.string(), st.sampled_from([*(kind.symbol for kind in RowKind), "+X", None])),
}
NESTED = {
    "lines": (
        pa.list_(pa.struct([("item", pa.string()), ("price", pa.float64())])),
        st.sampled_from([[], [{"item": "x", "price": None}], [{"item": None, "price": 1.0}], None]),
    ),
    "extra": (pa.map_(pa.string(), pa.int64()), st.sampled_from([None, [], [("k", 1)], [("k", None)]])),
}


@st.composite
def inputs(draw):
    """Draw a record type, and files of rows for it, some of them invalid."""
    is_nested = draw(st.booleans())
    fields = FIELDS | (NESTED if is_nested else {})
    if draw(st.booleans()):
        fields = {name: field for name, field in fields.items() if name != "seen"}
    rows = st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})
    schema = pa.schema([(name, kind) for name, (kind, _) in fields.items()])
    files = draw(st.lists(st.lists(rows, min_size=1, max_size=8), min_size=1, max_size=3))
    return Nested if is_nested else Row, [pa.Table.from_pylist(file, schema) for file in files]


def left_behind(built, files, parallelism):
    """Return everything that the job has stored, without the ids of runs."""
    job = {"sources": {"rows": {"max_quarantined": "none"}}}
    harness = PipelineHarness(built, bucket=3, files_per_batch=2, parallelism=parallelism, job=job)
    for file in files:
        harness.feed_table("rows", file)
        harness.run(max_batches=1)
    harness.run(end_of_input=True)
    tables = {name: rows_of(harness.table(name)) for name in ("keyed_state", "timers", "quarantine")}
    tables["materializer_history"] = rows_of(harness.table("materializer_history"))
    checkpoints = harness.table("checkpoints")
    watermarks = checkpoints["watermark"].cast(pa.int64()).to_pylist()  # Python has no such late times
    places = checkpoints.select(FACTS).to_pylist()
    for place in places:  # without the times of the files, and the names of local copies
        place["operators"] = re.sub(r'"local_copies":{[^}]*}', "", place["operators"] or "")
        place["sources"] = re.sub(r'\["(\w*)","\w*","(\w*)"\]', r'["\1","\2"]', place["sources"] or "")
    sinks = {name: rows_of(harness.sink_table(name)) for name in ("counts", "latest", "others")}
    return tables | sinks | {"watermarks": watermarks, "places": places}


FACTS = ["sources", "timelines", "held", "pending", "due", "operators", "edges", "pauses", "declared"]


def rows_of(table):
    return sorted(repr(sorted(row.items())) for row in table.to_pylist(maps_as_pydicts="lossy"))


KEYS = [("text",), ("share",), ("yes", "number"), ("raw",), ("side", "share"), ("at",), ("seen",), ("note",)]


JOBS = functools.partial(
    given,
    given_inputs=inputs(),
    order_by=st.sampled_from([(), ("at",), ("number", "text"), ("at", "share")]),
    parallelism=st.sampled_from([1, 2]),
)


@pytest.mark.slow
@settings(max_examples=4)
@JOBS(keys=st.sampled_from(KEYS))
def test_columns_and_records_give_equal_results(given_inputs, keys, order_by, parallelism):
    compare(given_inputs, keys, order_by, parallelism)


@pytest.mark.long
@pytest.mark.parametrize("keys", KEYS, ids="+".join)
@examples(3)
@JOBS()
def test_many_random_jobs_give_equal_results(given_inputs, keys, order_by, parallelism):
    compare(given_inputs, keys, order_by, parallelism)


def compare(given_inputs, keys, order_by, parallelism):
    record, files = given_inputs
    columnar = left_behind(pipeline(record, keys, order_by, is_step=False), files, parallelism)
    by_record = left_behind(pipeline(record, keys, order_by, is_step=True), files, parallelism)
    assert columnar == by_record
