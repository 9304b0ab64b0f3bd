"""Whole updates of a stream of upserts: equal to a loop over a dict."""

from __future__ import annotations

import enum
from collections import defaultdict
from datetime import timedelta
from itertools import count, pairwise
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from headrace import (
    ChangelogMode,
    KeyedProcessFunction,
    Lifetime,
    OutputMode,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.api.changelog_inference import changes_of
from headrace.operators import Sum
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.test_changelog_modes import Certain, ask, retracts
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
HALF = 30_000
"""Half a minute (ms)."""


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    amount: int | None = None


def source(**options):
    return Pipeline("shop").source("rows", Row, event_time="at", **options)


def harness_of(backend="hashmap", **options):
    function = source().normalize("latest", key=("id",), **options).operators[-1].function
    return KeyedHarness(function, key=lambda row: row.id, backend=backend)


def by_loop(changes):
    """Return the changes with whole old rows, and the number of retractions of unknown keys."""
    table, emitted, unknown = {}, [], 0
    for kind, row in changes:
        old = table.get(row.id)
        if kind in {BEFORE, DELETE}:
            unknown += old is None
            emitted += [] if old is None else [(DELETE, table.pop(row.id))]
        elif old is None:
            table[row.id] = row
            emitted.append((INSERT, row))
        elif old != row:
            table[row.id] = row
            emitted += [(BEFORE, old), (AFTER, row)]
    return emitted, unknown


CHANGES = st.lists(
    st.tuples(st.sampled_from(RowKind), st.builds(Row, st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 2))),
    max_size=20,
)


@examples(12)
@given(changes=CHANGES)
def test_whole_updates_equal_a_loop(changes):
    assert_equal("hashmap", changes)


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_backends_give_the_same(backend):
    rows = [Row(key, at, at % 3) for at, key in enumerate("abacabbacab")]
    kinds = [INSERT, AFTER, AFTER, DELETE, BEFORE, AFTER, DELETE, AFTER, AFTER, DELETE, AFTER]
    assert_equal(backend, [*zip(kinds, rows, strict=True)])


def assert_equal(backend, changes):
    with harness_of(backend) as harness:
        for kind, row in changes:
            harness.process(row, timestamp=row.at, kind=kind)
        harness.drain()
        expected, unknown = by_loop(changes)
        for key in "abc":
            assert [(kind, row) for kind, row in harness.kinds() if row.id == key] == [
                (kind, row) for kind, row in expected if row.id == key
            ]
        assert len(harness.quarantined()) == unknown


class Seen(Struct, frozen=True):
    """A change, with its number among those of its key."""

    id: str
    number: int
    kind: int
    amount: int | None


class Number(KeyedProcessFunction[Row, Seen]):
    count = ValueState("count", int)

    async def process(self, row, ctx, /):
        number = await self.count.value() or 0
        await self.count.update(number + 1)
        ctx.collect(Seen(row.id, number, int(ctx.row_kind), row.amount))


@pytest.mark.parametrize("parallelism", [1, 3])
@examples(4)
@given(changes=CHANGES.filter(bool), cuts=st.sets(st.integers(1, 20), max_size=3))
def test_micro_batches_and_tasks_change_nothing(parallelism, changes, cuts):
    stream = source(row_kind="op").normalize("latest", key=("id",)).key_by("id").process("number", Number())
    harness = PipelineHarness(stream.sink("seen"), bucket=1, parallelism=parallelism, files_per_batch=1)
    places = [0, *sorted(cuts), len(changes)]
    for begin, end in pairwise(places):
        if part := changes[begin:end]:
            kinds, rows = zip(*part, strict=True)
            harness.feed("rows", rows, kinds=kinds)
    report = harness.run()
    expected, unknown = by_loop(changes)
    counts = defaultdict(count)
    seen = {Seen(row.id, next(counts[row.id]), int(kind), row.amount) for kind, row in expected}
    assert ({*harness.sink("seen")}, report.quarantined) == (seen, unknown)


def test_deletion_needs_only_the_key():
    class Total(Struct, frozen=True):
        amount: Annotated[int | None, Sum("amount")]

    pipeline = source(row_kind="op").normalize("latest", key=("id",)).key_by("id")
    pipeline = pipeline.aggregate("sums", Total, state_ttl=Lifetime.FOREVER).sink("sums")
    harness = PipelineHarness(pipeline, bucket=1)
    rows = [Row("a", 1, 5), Row("a", 2, 7), Row("a", 3), Row("b", 4), Row("b", 5, 1)]
    harness.feed("rows", rows, kinds=[AFTER, AFTER, DELETE, DELETE, AFTER])
    report = harness.run()
    assert report.quarantined == 1  # b was never there
    assert sorted(row.amount for row in harness.sink("sums")) == [1, 5, 5, 7, 7]


class Kind(enum.Enum):
    OLD = "old"


class Whole(Struct, frozen=True):
    """A record whose fields all have values."""

    id: str
    at: Timestamp
    amount: int
    price: float
    kind: Kind
    tags: list[str]
    more: Row


def rows_of(record, *rows):
    names = record.__struct_fields__
    return pa.table({name: [row.get(name) for row in rows] for name in ("op", *names)})


WHOLE = {"op": "+I", "id": "a", "at": 1, "amount": 5, "price": 0.5, "kind": "old", "tags": ["x"], "more": {"id": "b"}}
WHOLE["more"] |= {"at": 1, "amount": 1}
TOMBSTONE = {"op": "-D", "id": "a", "at": 2}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_tombstone_needs_only_the_key(backend):
    changes = Pipeline("shop").source("rows", Whole, event_time="at", row_kind="op")
    latest = changes.normalize("latest", key=("id",))
    harness = PipelineHarness(latest.upsert_materialize("m", primary_key=("id",)).sink("table"), backend=backend)
    harness.feed_table("rows", rows_of(Whole, WHOLE, WHOLE | {"id": "b"}, TOMBSTONE))
    assert harness.run().quarantined == 0
    assert [row.id for row in harness.sink("table")] == ["b"]


def refused(record, build, *rows):
    pipeline = build(Pipeline("shop").source("rows", record, event_time="at", row_kind="op"))
    harness = PipelineHarness(pipeline, job={"sources": {"rows": {"max_quarantined": "none"}}})
    harness.feed_table("rows", rows_of(record, *rows))
    harness.run()
    return [row["error"] for row in harness.table("quarantine").to_pylist()]


def test_partial_rows_reach_no_code_of_users():
    class Adult(Struct, frozen=True):
        id: str
        at: Timestamp
        age: Annotated[int, Meta(ge=18)]

    def build(rows):
        rows.filter(bool).sink("others")
        return rows.normalize("latest", key=("id",)).sink("out")

    (error,) = refused(Whole, build, WHOLE, TOMBSTONE)
    assert error.startswith("amount is null: a -D takes the whole old row back. Let normalize() alone read the source")
    others = [{"op": "-D", "id": None, "at": 1}, {"op": "-U", "id": "a", "at": 1}, {"op": "-D", "id": "a"}]
    errors = refused(Whole, lambda rows: rows.normalize("latest", key=("id",)).sink("out"), *others)
    assert [error.partition(":")[0] for error in errors] == ["id is null", "amount is null", "at is null"]
    adult = {"op": "-D", "id": "a", "at": 1}
    (error,) = refused(Adult, lambda rows: rows.normalize("latest", key=("id",)).sink("out"), adult)
    assert error.endswith("give the field a default, or declare it optional")


def test_forgotten_key_is_new_again():
    with harness_of(state_ttl=timedelta(minutes=1)) as harness:

        def give(at, amount):
            harness.process(Row("a", 0, amount), timestamp=at, kind=AFTER)
            harness.drain()

        give(0, 1)
        harness.watermark(HALF)
        give(HALF, 1)  # an equal row renews the lifetime
        harness.watermark(2 * HALF)
        give(2 * HALF, 2)
        harness.watermark(4 * HALF)
        give(4 * HALF, 3)
        assert [kind for kind, _ in harness.kinds()] == [INSERT, BEFORE, AFTER, INSERT]


def test_key_is_known_from_the_stream():
    class Copy(KeyedProcessFunction[Row, Row]):
        async def process(self, row, ctx, /):
            ctx.collect(row, ctx.row_kind)

    upserts = source().key_by("id").process("copy", Copy(), emits=ChangelogMode.upsert("id"))
    normalized = upserts.normalize("latest")
    assert str(changes_of(normalized._use())) == "retract; unique by id"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: source().normalize("latest"), r"key=\(\"id\",\)"),
        (lambda: source().normalize("latest", key=("sku",)), "no field 'sku'"),
        (lambda: source(row_kind="op").drop_update_before("id").normalize("n", key=("at",)), r"not by \('at',\)"),
        (lambda: ask(retracts(), Certain, mode=OutputMode.UNORDERED).normalize("n", key=("id",)), "'ask' before it"),
        (lambda: source().normalize("latest", key=("id",), state_ttl=5), "state_ttl must be"),
    ],
)
def test_keys_that_cannot_be_are_refused(build, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        build()
