"""Row kinds of a source whose column has values of its own: what they stand for, and what the graph makes of them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from headrace import Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.api.changelog_inference import changes_of
from headrace.api.graph import Input
from headrace.operators import Count, Sum
from headrace.records.columns import RecordReader
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

CDC = {"field": "op", "c": "+I", "r": "+I", "u": "+U", "d": "-D"}


class Item(Struct, frozen=True):
    sku: str
    at: Timestamp
    shop: str = ""
    price: int = 0


class Shop(Struct, frozen=True):
    shop: str
    items: Annotated[int, Count()]
    total: Annotated[int | None, Sum("price")]


def items(row_kind=CDC, record=Item):
    return Pipeline("items").source("items", record, event_time="at", row_kind=row_kind)


def mode(stream):
    return str(changes_of(Input(stream._node)))


def by_shop():
    latest = items().normalize("latest", key=("sku",))
    return (
        latest.key_by("shop")
        .aggregate("shops", Shop, state_ttl=Lifetime.FOREVER)
        .upsert_materialize("by_shop", primary_key=("shop",), upsert_key=("shop",))
        .sink("shops")
    )


@pytest.mark.parametrize(
    ("row_kind", "shown"),
    [
        (None, "insert"),
        ("op", "retract"),
        (CDC, "upsert(unknown key)"),
        (CDC | {"b": "-U"}, "retract"),
        ({"field": "gone", "false": "+I", "true": "-D"}, "retract"),
        ({"field": "gone", "false": "+U", "true": "-D"}, "upsert(unknown key)"),
        ({"field": "op", "c": "+I"}, "insert"),
    ],
)
def test_values_decide_about_the_mode(row_kind, shown):
    assert mode(items(row_kind)) == shown


@pytest.mark.parametrize(
    "row_kind",
    [{}, {"field": "op"}, {"c": "+I"}, {"field": 1, "c": "+I"}, {"field": "op", "c": "I"}, {"field": "op", 1: "+I"}],
)
def test_mapping_that_says_too_little_is_refused(row_kind):
    with pytest.raises(ValueError, match="row_kind of 'items'"):
        items(row_kind)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda s: s.filter(lambda item: item.price > 1), r"drop_update_before\("),
        (lambda s: s.flat_map(lambda item: [item], record=Item), "normalize"),
        (lambda s: s.key_by("shop").aggregate("shops", Shop, state_ttl=Lifetime.FOREVER), "normalize"),
        (lambda s: s.key_by("sku").top("best", 1, by="price", state_ttl=Lifetime.FOREVER), "normalize"),
        (lambda s: s.sql("select * from items where price > 1"), "may drop the new row"),
        (lambda s: s.union(items()), "union|pipeline"),
    ],
)
def test_upserts_of_a_source_need_whole_updates(use, why):
    with pytest.raises(ValueError, match=why):
        use(items())


def test_key_of_upserts_is_named_behind_the_source():
    upserts = items().drop_update_before("sku")
    assert mode(upserts) == "upsert(sku)"
    assert mode(upserts.filter(lambda item: item.price > 1)) == "upsert(sku)"


ROWS = st.lists(
    st.tuples(st.sampled_from("crud"), st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 9)), max_size=30
)


@pytest.mark.slow
@examples(25)
@given(rows=ROWS, cut=st.integers(0, 30), bucket=st.sampled_from([1, 5, 100]))
def test_feed_of_changes_equals_a_dictionary(rows, cut, bucket):
    h = PipelineHarness(by_shop(), bucket=bucket, job={"sources": {"items": {"format": "json"}}})
    table: dict[str, tuple[str, int]] = {}
    lines = []
    for at, (op, sku, shop, price) in enumerate(rows):
        if op == "d":
            table.pop(sku, None)
            lines.append({"op": op, "sku": sku, "at": at})
        else:
            table[sku] = (shop, price)
            lines.append({"op": op, "sku": sku, "at": at, "shop": shop, "price": price})
    for number, part in enumerate((lines[:cut], lines[cut:])):
        h.feed_bytes("items", "".join(f"{json.dumps(line)}\n" for line in part).encode(), file=f"{number}.json")
        h.run()
    expected = {
        shop: (len(prices), sum(prices))
        for shop in {shop for shop, _ in table.values()}
        if (prices := [price for other, price in table.values() if other == shop])
    }
    assert {row.shop: (row.items, row.total) for row in h.sink("shops")} == expected


def test_additions_are_new_rows():
    h = PipelineHarness(items().additions().sink("out"), job={"sinks": {"out": {"mode": "append"}}})
    assert mode(items().additions()) == "insert"
    kinds = [RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE, RowKind.INSERT]
    h.feed("items", [Item("a", at, "x", at) for at in range(4)], kinds=kinds)
    h.run()
    assert [row.at for row in h.sink("out")] == [0, 1, 3]


class Pair(Struct, frozen=True):
    sku: str
    first: int
    second: int

    @classmethod
    def of(cls, left: Item, right: Item) -> Pair:
        return cls(left.sku, left.price, right.price)


def test_additions_may_meet_by_interval():
    p = Pipeline("pairs")
    left, right = (p.source(name, Item, event_time="at", row_kind="op") for name in ("items", "others"))
    within = (timedelta(0), timedelta(milliseconds=5))
    with pytest.raises(ValueError, match=r"additions\(\)"):
        left.key_by("sku").join("pairs", right.key_by("sku"), emit=Pair.of, within=within)
    pairs = left.additions().key_by("sku").join("pairs", right.additions().key_by("sku"), emit=Pair.of, within=within)
    h = PipelineHarness(pairs.sink("out"), job={"sinks": {"out": {"mode": "append"}}})
    h.feed("items", [Item("a", 1, "x", 1), Item("a", 2, "x", 2)], kinds=[RowKind.INSERT, RowKind.UPDATE_AFTER])
    h.feed("others", [Item("a", 3, "x", 7), Item("a", 4, "x", 8)], kinds=[RowKind.INSERT, RowKind.DELETE])
    h.run(end_of_input=True)
    assert sorted(h.sink("out"), key=repr) == [Pair("a", 1, 7), Pair("a", 2, 7)]


class Strict(Struct, frozen=True):
    sku: str
    at: Timestamp
    shop: str
    deleted: bool


def test_deletion_may_lack_members_that_others_need():
    stream = items({"field": "deleted", "false": "+U", "true": "-D"}, Strict).normalize("latest", key=("sku",))
    h = PipelineHarness(
        stream.upsert_materialize("out", primary_key=("sku",)).sink("out"),
        job={"sources": {"items": {"format": "json", "max_quarantined": "none"}}},
    )
    put = [{"sku": sku, "at": 1, "shop": "x", "deleted": False} for sku in "ab"]
    rows = [*put, {"sku": "a", "at": 2, "deleted": True}, {"sku": "c", "at": 3, "deleted": False}]
    h.feed_bytes("items", "".join(f"{json.dumps(row)}\n" for row in rows).encode(), file="1.json")
    h.run()
    assert h.sink("out") == [Strict("b", 1, "x", False)]
    assert [row["error"] for row in h.table("quarantine").to_pylist()] == ["shop is missing"]


@pytest.mark.parametrize(
    ("row_kind", "values"),
    [
        ({"field": "deleted", "false": "+U", "true": "-D"}, (False, True)),
        ({"field": "deleted", "0": "+U", "1": "-D"}, (0, 1)),
    ],
)
def test_column_of_kinds_alone_has_any_type(row_kind, values):
    stream = items(row_kind).normalize("latest", key=("sku",)).upsert_materialize("out", primary_key=("sku",))
    h = PipelineHarness(stream.sink("out"), job={"sources": {"items": {"format": "json"}}})
    rows = [{"sku": sku, "at": 1, "deleted": values[0]} for sku in "ab"] + [{"sku": "a", "at": 2, "deleted": values[1]}]
    h.feed_bytes("items", "".join(f"{json.dumps(row)}\n" for row in rows).encode(), file="1.json")
    h.run()
    assert [row.sku for row in h.sink("out")] == ["b"]


class Regional(Struct, frozen=True):
    sku: str
    at: Timestamp
    region: str | None = "eu"


def test_deletion_has_the_default_of_its_key():
    stream = items("op", Regional).normalize("latest", key=("sku", "region"))
    h = PipelineHarness(
        stream.upsert_materialize("out", primary_key=("sku", "region")).sink("out"),
        job={"sources": {"items": {"format": "json"}}},
    )
    rows = [{"op": "+I", "sku": "a", "at": 1}, {"op": "-D", "sku": "a", "at": 2}]
    h.feed_bytes("items", "".join(f"{json.dumps(row)}\n" for row in rows).encode(), file="1.json")
    h.run()
    assert (h.sink("out"), h.table("quarantine").num_rows) == ([], 0)


def test_additions_beside_normalize_need_no_whole_deletion():
    source = items("op", Strict)
    source.normalize("latest", key=("sku",)).upsert_materialize("out", primary_key=("sku",)).sink("out")
    job = {"sources": {"items": {"format": "json"}}, "sinks": {"log": {"mode": "append"}}}
    h = PipelineHarness(source.additions().sink("log"), job=job)
    rows = [{"op": "+I", "sku": "a", "at": 1, "shop": "x", "deleted": False}, {"op": "-D", "sku": "a", "at": 2}]
    h.feed_bytes("items", "".join(f"{json.dumps(row)}\n" for row in rows).encode(), file="1.json")
    h.run()
    assert (h.sink("out"), len(h.sink("log")), h.table("quarantine").num_rows) == ([], 1, 0)


def test_unknown_value_goes_to_quarantine():
    h = PipelineHarness(by_shop(), job={"sources": {"items": {"format": "json", "max_quarantined": "none"}}})
    rows = [{"op": op, "sku": "a", "at": 1, "shop": "x", "price": 1} for op in ("c", "x", None, "+I")]
    h.feed_bytes("items", "".join(f"{json.dumps(row)}\n" for row in rows).encode(), file="1.json")
    h.run()
    reasons = [row["error"] for row in h.table("quarantine").to_pylist()]
    assert reasons == [f"op is {value}, not one of c, r, u, d" for value in ("'x'", "None", "'+I'")]


class Changed(Struct, frozen=True):
    sku: str
    at: Timestamp
    op: int


@pytest.mark.parametrize(
    ("column", "values", "row_kind"),
    [
        ("op", pa.array([1, 2, 3, 4]), {"2": "+I", "3": "-U", "4": "+U", "1": "-D"}),
        ("kind", pa.array([1, 2, 3, 4], pa.int8()), {"2": "+I", "3": "-U", "4": "+U", "1": "-D"}),
        ("kind", pa.array(["d", "i", "b", "a"]).dictionary_encode(), {"i": "+I", "b": "-U", "a": "+U", "d": "-D"}),
    ],
)
def test_numbers_and_dictionaries_stand_for_kinds(column, values, row_kind):
    node = items({"field": column, **row_kind}, Changed)._node.operator
    table = pa.table({"sku": list("abcd"), "at": [1, 2, 3, 4], "op": [1, 2, 3, 4]} | {column: values})
    records, kinds, bad = RecordReader(node.record, node.row_kind, kinds=node.kinds).read(table)
    assert (len(records), kinds, bad) == (
        4,
        [RowKind.DELETE, RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER],
        [],
    )


def test_truth_values_stand_for_kinds():
    stream = items({"field": "deleted", "false": "+U", "true": "-D"}).normalize("latest", key=("sku",))
    h = PipelineHarness(stream.upsert_materialize("out", primary_key=("sku",)).sink("out"))
    rows = {
        "sku": list("aab"),
        "at": [1, 2, 3],
        "shop": list("xyz"),
        "price": [1, 2, 3],
        "deleted": [False, True, False],
    }
    h.feed_table("items", pa.table(rows))
    h.run()
    assert h.sink("out") == [Item("b", 3, "z", 3)]


def test_harness_feeds_kinds_as_their_values():
    h = PipelineHarness(by_shop())
    h.feed("items", [Item("a", 1, "x", 1), Item("a", 2, "x", 5)], kinds=[RowKind.INSERT, RowKind.UPDATE_AFTER])
    h.run()
    assert h.sink("shops") == [Shop("x", 1, 5)]
    with pytest.raises(ValueError, match="no value of op in source 'items' stands for -U"):
        h.feed("items", [Item("a", 1)], kinds=[RowKind.UPDATE_BEFORE])
