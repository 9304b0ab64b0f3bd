"""Changelog modes and unique keys: what the graph knows of each stream, and what it refuses."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated

import pytest

from headrace import (
    AsyncFunction,
    ChangelogMode,
    Emit,
    JoinType,
    KeyedProcessFunction,
    Late,
    Lifetime,
    OnConflict,
    OutputMode,
    Pipeline,
    Struct,
    Timestamp,
)
from headrace.api.changelog_inference import changes_of
from headrace.operators import Count, Cumulative, Hopping, Rank, Session, Sum, Tumbling
from tests.jobs.home import PROJECT

FOREVER = {"state_ttl": Lifetime.FOREVER}
SECOND = timedelta(seconds=1)


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    customer: str = ""
    amount: int = 0


class Total(Struct, frozen=True):
    customer: str
    amount: Annotated[int, Sum("amount")]


class Number(Struct, frozen=True):
    orders: Annotated[int, Count()]


class Named(Struct, frozen=True):
    id: str
    name: str


class Same(KeyedProcessFunction[Order, Order]):
    async def process(self, order, ctx, /):
        ctx.collect(order, ctx.row_kind)


class Ask(AsyncFunction[Order, Order]):
    async def invoke(self, order, /):
        return [order]


class Certain(Ask):
    deterministic = True


class Name(AsyncFunction[Order, Named]):
    async def invoke(self, order, /):
        return [Named(order.id, "")]


def inserts(name="orders", pipeline=None, **options):
    return (pipeline or Pipeline("shop")).source(name, Order, event_time="at", **options)


def retracts():
    return inserts(row_kind="op")


def upserts():
    return retracts().drop_update_before("id")


def same(order: Order) -> Order:
    return order


def pair(left: Order, right: Order | None) -> Order:
    return left


def totals(stream, result=Total, **options):
    return stream.key_by("customer").aggregate("totals", result, **FOREVER, **options)


def processed(stream, **options):
    return stream.key_by("id").process("same", Same(), **options)


def ask(stream, function=Ask, **options):
    return stream.async_wait("ask", function(), timeout=SECOND, **options)


class Windowed(Struct, frozen=True):
    customer: str
    window_start: Timestamp
    window_end: Timestamp


class Counted(Struct, frozen=True):
    customer: Annotated[int, Count()]
    window_end: Timestamp


class CountedTotal(Struct, frozen=True):
    customer: Annotated[int, Count()]


class Ranked(Struct, frozen=True):
    customer: str
    rank: Annotated[int, Rank()]


class RankedInWindow(Ranked, frozen=True):
    window_end: Timestamp


BY_START, BY_END = "unique by customer, window_start", "unique by customer, window_end"


def windowed(windows, result=Windowed, **options):
    return inserts().key_by("customer").window(windows).aggregate("windows", result, **options)


def ranked_window(n, **options):
    windows = inserts().key_by("customer").window(Tumbling(SECOND))
    return windows.top("first", n, by="amount", result=RankedInWindow, **options)


def top(stream, n, **options):
    return stream.key_by("customer").top("top", n, by="amount", **FOREVER, **options)


class Spent(Struct, frozen=True):
    id: str
    spent: Annotated[int, Sum("amount")]


def over(stream, result=Spent, **options):
    return stream.key_by("customer").over("spent", result, within=SECOND, **options)


def latest(**options):
    return inserts().key_by("id").last_by_time("latest", **FOREVER, **options)


def firsts():
    return inserts().key_by("id").first_by_time("first", at_watermark=True, **FOREVER)


def semi_join(windows):
    pipeline = Pipeline("shop")
    first = inserts(pipeline=pipeline).key_by("id").first_by_time("first", at_watermark=True, **FOREVER)
    others = inserts("others", pipeline)
    return first.key_by("id").window(windows).semi_join("both", others.key_by("id").window(windows))


def shown(stream):
    return str(changes_of(stream._use()))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (inserts, "insert"),
        (lambda: inserts().filter(bool).map(same), "insert"),
        (retracts, "retract"),
        (lambda: retracts().filter(bool).flat_map(lambda row: [row], record=Order), "retract"),
        (upserts, "upsert(id)"),
        (lambda: upserts().filter(bool).map(same, keeps=("id",)), "upsert(id)"),
        (lambda: inserts().drop_update_before(), "insert"),
        (lambda: totals(inserts()), "retract; unique by customer"),
        (lambda: totals(inserts()).filter(bool), "retract; unique by customer"),
        (lambda: totals(inserts()).drop_update_before(), "upsert(customer)"),
        (lambda: totals(inserts(), Number), "retract"),
        (lambda: totals(inserts(), retract=False), "upsert(customer)"),
        (lambda: totals(inserts(), Number, retract=False), "upsert(unknown key)"),
        (lambda: inserts().key_by("id").last_by_time("last", **FOREVER), "retract; unique by id"),
        (lambda: inserts().key_by("id").first_by_time("f", at_watermark=True, **FOREVER), "insert; unique by id"),
        (lambda: inserts().key_by("id").window(Tumbling(SECOND)).aggregate("sums", Number), "insert"),
        (
            lambda: inserts().key_by("id").window(Tumbling(SECOND)).aggregate("sums", Number, allowed_lateness=SECOND),
            "retract",
        ),
        (
            lambda: retracts().key_by("id").window(Tumbling(SECOND)).aggregate("n", Number).side("late", Order),
            "retract",
        ),
        (lambda: windowed(Tumbling(SECOND)), f"insert; {BY_START}; {BY_END}"),
        (lambda: windowed(Hopping(2 * SECOND, SECOND)), f"insert; {BY_START}; {BY_END}"),
        (lambda: windowed(Cumulative(2 * SECOND, SECOND)), f"insert; {BY_END}"),
        (lambda: windowed(Session(SECOND), allowed_lateness=SECOND), f"retract; {BY_START}; {BY_END}"),
        (lambda: windowed(Tumbling(SECOND), Counted), "insert"),  # its customer is a number of records
        (lambda: totals(inserts(), CountedTotal), "retract"),
        (lambda: ranked_window(1), "insert; unique by customer, window_end"),
        (lambda: ranked_window(2), "insert; unique by customer, rank, window_end"),
        (lambda: ranked_window(2, ties=True), "insert"),
        (lambda: top(inserts(), 1), "retract; unique by customer"),
        (lambda: top(inserts(), 2), "retract"),
        (lambda: top(inserts(), 2, result=Ranked), "retract; unique by customer, rank"),
        (lambda: top(latest(), 2), "retract; unique by id"),
        (lambda: over(inserts()), "insert"),
        (lambda: over(inserts(), late=Late.CORRECT, keep=SECOND), "retract"),
        (lambda: over(firsts()), "insert; unique by id"),
        (lambda: over(firsts(), Number), "insert"),
        (lambda: over(firsts(), late=Late.CORRECT, keep=SECOND), "retract; unique by id"),
        (lambda: over(inserts(), late=Late.CORRECT, keep=SECOND).side("late", Order), "insert"),
        (lambda: semi_join(Tumbling(SECOND)), "insert; unique by id"),
        (lambda: semi_join(Hopping(2 * SECOND, SECOND)), "insert"),
        (lambda: processed(inserts()), "retract, assumed: it declares no emits="),
        (lambda: processed(inserts()).side("aside", Order), "insert"),
        (lambda: processed(inserts(), emits=ChangelogMode.INSERT), "insert"),
        (lambda: processed(inserts(), emits=ChangelogMode.upsert("id", "at")), "upsert(id, at)"),
        (lambda: ask(inserts()), "insert"),
        (lambda: ask(upserts(), mode=OutputMode.ORDERED), "upsert(id)"),
        (lambda: ask(upserts().key_by("id"), mode=OutputMode.KEYED_ORDERED), "upsert(id)"),
        (lambda: ask(retracts(), Certain, mode=OutputMode.ORDERED), "retract"),
        (lambda: ask(retracts(), Certain), "retract; 'ask' may change their order"),
        (lambda: retracts().upsert_materialize("m", primary_key=("id",)), "upsert(id)"),
    ],
)
def test_graph_knows_changes_of_each_stream(stream, expected):
    assert shown(stream()) == expected


def test_union_retracts_where_an_input_does():
    pipeline = Pipeline("shop")
    plain = inserts(pipeline=pipeline)
    changed = inserts("changes", pipeline, row_kind="op")
    assert shown(plain.union(plain)) == "insert"
    assert shown(plain.union(changed)) == "retract"
    unknown = processed(plain)
    assert shown(plain.union(unknown)) == "retract, assumed: it declares no emits="
    assert shown(changed.union(unknown)) == "retract"


def as_of(left, right):
    return left.key_by("id").join_as_of("as_of", right.key_by("id"), emit=pair, how=JoinType.LEFT, **FOREVER)


def self_joined(how):
    changes = retracts()
    return changes.key_by("customer").join("pairs", changes.key_by("customer"), emit=pair, how=how, **FOREVER)


def test_outer_join_emits_no_updates():
    assert shown(self_joined(JoinType.LEFT).drop_update_before("id")) == "upsert(id)"


def versions(build):
    pipeline = Pipeline("shop")
    return as_of(inserts(pipeline=pipeline), build(inserts("changes", pipeline, row_kind="op")))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: retracts().drop_update_before(), 'fields that identify a row, as in drop_update_before."id".'),
        (lambda: retracts().filter(bool).drop_update_before("id"), "Call it before that step"),
        (lambda: self_joined(JoinType.INNER).drop_update_before("id"), "may drop rows .*an inner join"),
        (lambda: retracts().drop_update_before("sku"), "has no field 'sku'"),
        (lambda: upserts().union(upserts()), "another pipeline|of pipeline"),
        (lambda: (some := upserts()).union(some), r"'drop_update_before' is upsert\(id\).*normalize\(\)"),
        (lambda: upserts().map(same), r"map\(..., keeps=\('id',\)\)"),
        (lambda: upserts().flat_map(lambda row: [row], record=Order), r"normalize\(\).*filter\(\) and map"),
        (lambda: inserts().map(same, keeps=("sku",)), "has no field 'sku'"),
        (lambda: inserts().map(same, keeps="id"), "several names"),
        (lambda: totals(upserts()), r"aggregate 'totals' gets upsert\(id\) from 'drop_update_before'.*normalize\(\)"),
        (lambda: totals(inserts(), Number, retract=False).filter(bool), "nothing declares their key"),
        (
            lambda: upserts().key_by("at").top("best", 1, by="amount", **FOREVER),
            r"top 'best': .*upsert\(id\).*normalize",
        ),
        (
            lambda: upserts().upsert_materialize("m", primary_key=("id",), upsert_key=("at",)),
            r"give upsert_key=\('id',\)",
        ),
        (
            lambda: upserts().upsert_materialize("m", primary_key=("customer",), upsert_key=("id",)),
            "would leave the old row. Call normalize",
        ),
        (lambda: ask(retracts(), mode=OutputMode.ORDERED), "deterministic = True"),
        (lambda: ask(retracts().key_by("id"), mode=OutputMode.KEYED_ORDERED), "drop_update_before"),
        (lambda: ask(upserts()), "mode=OutputMode.ORDERED"),
        (lambda: ask(upserts().key_by("customer"), mode=OutputMode.KEYED_ORDERED), r"key_by\('id',\)"),
        (lambda: ask(upserts(), Name, mode=OutputMode.ORDERED), r"name. Give these fields defaults.*deleted\(\)"),
        (lambda: over(retracts()), r"over 'spent': .* may take records back .*additions\(\)"),
        (lambda: over(upserts()), r"over 'spent': .* may take records back .*additions\(\)"),
        (lambda: processed(inserts(), emits=ChangelogMode.upsert("sku")), "has no field 'sku'"),
        (lambda: processed(inserts(), emits="insert"), "emits is ChangelogMode"),
        (lambda: versions(lambda changes: changes.filter(bool)), "when the version before it ends"),
        (lambda: versions(newest), "-D of 'newest' .*never valid.*drop_update_before"),
        (
            lambda: versions(lambda changes: newest(changes).drop_update_before("id").map(same, keeps=("id",))),
            "'newest'",
        ),
        (lambda: versions(lambda changes: top(changes, 1)), "never valid"),
        (lambda: as_of((rows := inserts()), top(rows, 2)), "never valid"),
    ],
)
def test_changes_that_cannot_be_right_are_refused(build, reason):
    with pytest.raises((TypeError, ValueError), match=f"(?s){reason}"):
        build()


def newest(changes):
    return changes.normalize("newest", key=("id",), **FOREVER)


def test_versions_of_inserts_alone_have_no_deletions():
    for build in (newest, partial(top, n=1), lambda rows: rows.key_by("id").last_by_time("last", **FOREVER)):
        rows = inserts()
        assert shown(as_of(rows, build(rows))) == "insert"


def test_versions_may_be_upserts():
    assert shown(versions(lambda changes: changes.drop_update_before("id").filter(bool))) == "insert"
    assert shown(versions(lambda changes: changes)) == "insert"


@pytest.mark.parametrize(
    ("stream", "given", "upsert_key"),
    [
        (upserts, {"primary_key": ("id",)}, ("id",)),
        (latest, {"primary_key": ("id",)}, ("id",)),
        (latest, {"primary_key": ("customer",)}, None),
        (latest, {"primary_key": ("id",), "emit": Emit.EVERY_CHANGE}, None),
        (latest, {"primary_key": ("id",), "on_conflict": OnConflict.ERROR}, None),
        (retracts, {"primary_key": ("id",)}, None),
        (lambda: windowed(Tumbling(SECOND)), {"primary_key": ("window_end", "customer")}, ("window_end", "customer")),
        (lambda: top(inserts(), 2, result=Ranked), {"primary_key": ("customer", "rank")}, ("customer", "rank")),
    ],
)
def test_fitting_unique_key_needs_no_declaration(stream, given, upsert_key):
    materializer = stream().upsert_materialize("m", **given).operators[-1]
    assert materializer.upsert_key == upsert_key


@pytest.mark.parametrize(
    ("stream", "upsert_key"),
    [
        (lambda: ask(retracts(), Certain, mode=OutputMode.ORDERED), ("id",)),
        (lambda: ask(retracts(), Certain), None),
        (lambda: ask(retracts().key_by("id"), Certain, mode=OutputMode.KEYED_ORDERED), ("id",)),
        (lambda: ask(retracts().key_by("customer"), Certain, mode=OutputMode.KEYED_ORDERED), None),
    ],
)
def test_reordered_changes_need_a_history(stream, upsert_key):
    stream().upsert_materialize("m", primary_key=("id",), upsert_key=("id",)).sink("table")
    materializer = stream().upsert_materialize("m", primary_key=("id",), upsert_key=("id",)).operators[-1]
    assert (materializer.upsert_key, materializer.is_needed) == (upsert_key, upsert_key is None)


def test_page_shows_real_changes():
    page = " ".join((PROJECT / "docs" / "changelogs.md").read_text().split())
    last = inserts().key_by("id").last_by_time("latest", **FOREVER)
    assert f"changes: {shown(last)}".replace("unique by id", "unique by order_id") in page
    with pytest.raises(
        ValueError, match=r"aggregate 'spent' gets upsert\(id\) from 'drop_update_before', and needs the old row"
    ):
        retracts().drop_update_before("id").key_by("customer").aggregate("spent", Total, **FOREVER)
