"""Rules of an operator that another run has changed are refused where its stored state would give wrong rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import History, JoinType, Lifetime, Pipeline, Struct, Timestamp
from headrace.errors import StateSchemaError
from headrace.operators import Count, Max
from headrace.state.type_schema import differences, type_schema_of
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

SECOND = timedelta(seconds=1)
FOREVER = Lifetime.FOREVER


class Bid(Struct, frozen=True):
    item: str
    at: Timestamp
    price: int = 1
    lsn: int = 1


class Frame(Struct, frozen=True):
    item: str
    highest: Annotated[int, Max("price")]


class Numbers(Struct, frozen=True):
    item: str
    bids: Annotated[int, Count()]


class Version(Struct, frozen=True):
    item: str
    price: int
    valid_from: int
    valid_to: int | None


class Pair(Struct, frozen=True):
    item: str

    @classmethod
    def of(cls, one: Bid | None, other: Bid | None) -> Pair:
        return cls((one or other).item)


def over(result, **frame):
    source = Pipeline("p").source("bids", Bid, event_time="at", out_of_orderness=SECOND).key_by("item")
    return source.over("rows", result, **frame).sink("rows")


def applied(record=None, **rules):
    source = Pipeline("p").source("bids", Bid, event_time="at")
    stream = source.apply_changes("rows", key=("item",), record=record, **rules)
    return stream.sink("rows", key=("item",) if record is None else ("item", "valid_from"))


def joined(method, **options):
    pipeline = Pipeline("p")
    bids = pipeline.source("bids", Bid, event_time="at", out_of_orderness=SECOND).key_by("item")
    others = pipeline.source("others", Bid, event_time="at", out_of_orderness=SECOND).key_by("item")
    if method == "join":
        pairs = bids.join("rows", others, emit=Pair.of, state_ttl=FOREVER, **options)
        return pairs.upsert_materialize("latest", primary_key=("item",)).sink("rows")
    return getattr(bids, method)("rows", others, state_ttl=FOREVER, **options).sink("rows", key="item")


def is_higher(one: Bid, other: Bid) -> bool:
    return one.price > other.price


VERSIONS = {"record": Version, "history": History.SCD2, "corrections": FOREVER}
CHANGES = {
    "over: another range": (lambda: over(Frame, within=SECOND), lambda: over(Frame, within=2 * SECOND)),
    "over: rows for a range": (
        lambda: over(Frame, within=SECOND),
        lambda: over(Frame, rows=3, state_ttl=FOREVER),
    ),
    "over: another range of sums": (lambda: over(Numbers, within=SECOND), lambda: over(Numbers, within=2 * SECOND)),
    "current rows by other fields": (lambda: applied(sequence_by="lsn"), lambda: applied(sequence_by="at")),
    "versions by other fields": (
        lambda: applied(sequence_by="lsn", **VERSIONS),
        lambda: applied(sequence_by=("lsn", "at"), **VERSIONS),
    ),
    "anti for semi": (lambda: joined("semi_join"), lambda: joined("anti_join")),
    "semi with a condition": (lambda: joined("semi_join"), lambda: joined("semi_join", on=is_higher)),
    "outer without its condition": (
        lambda: joined("join", how=JoinType.LEFT, on=is_higher),
        lambda: joined("join", how=JoinType.LEFT),
    ),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_changed_rule_refuses_stored_state(before, after):
    pipeline = before()
    harness = PipelineHarness(pipeline)
    harness.feed("bids", [Bid("a", 1), Bid("a", 2, 3, 2)])
    if "others" in {operator.name for operator in pipeline.operators}:
        harness.feed("others", [Bid("a", 2)])
    harness.run()
    harness.change(pipeline=after())
    with pytest.raises(StateSchemaError, match="state '"):
        harness.run()


class Placed(Struct, frozen=True):
    item: str
    at: Timestamp
    a: int = 1
    b: int = 2
    c: int = 3
    a_b: int = 4
    b_c: int = 5
    a_b_c: int = 6


class PlacedVersion(Struct, frozen=True):
    item: str
    valid_from: int
    valid_to: int | None


def placed(history, fields):
    rules = {"record": PlacedVersion, "history": history, "corrections": FOREVER} if history is History.SCD2 else {}
    rows = Pipeline("p").source("rows", Placed, event_time="at")
    return rows.apply_changes("op", key=("item",), sequence_by=fields, **rules).sink("out", key="item")


def runs_again(pipeline, changed):
    harness = PipelineHarness(pipeline)
    harness.feed("rows", [Placed("x", 1)])
    harness.run()
    harness.change(pipeline=changed)
    harness.feed("rows", [Placed("x", 2, 7, 7, 7, 7, 7, 7)])
    harness.run()


SEQUENCES = [("a", "b", "c"), ("a_b", "c"), ("a", "b_c"), ("a_b_c",)]


@examples(24)
@given(history=st.sampled_from(History), before=st.sampled_from(SEQUENCES), after=st.sampled_from([*SEQUENCES, ("c",)]))
def test_only_equal_sequences_share_state(history, before, after):
    if before == after:
        runs_again(placed(history, before), placed(history, after))
    else:
        with pytest.raises(StateSchemaError, match="state '"):
            runs_again(placed(history, before), placed(history, after))


def test_sequence_changes_no_stored_event():
    stream = placed(History.SCD1, ("a", "b"))
    stored = next(operator for operator in stream.operators if operator.name == "op").function.last.type
    before = msgspec.defstruct("Before", [("order", str), ("at", int), ("record", Placed | None)])
    for record in (None, Placed("x", 1)):
        assert msgspec.json.encode(stored(order="o", at=1, record=record)) == msgspec.json.encode(
            before("o", 1, record)
        )
    assert differences(type_schema_of(before), type_schema_of(stored)) == []
