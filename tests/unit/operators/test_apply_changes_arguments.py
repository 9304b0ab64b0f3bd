"""Arguments of `apply_changes`: sequences of several fields, row kinds, keys of the result, and what is refused."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest

from headrace import AsyncFunction, Digits, History, Lifetime, OutputMode, Pipeline, RowKind, Struct, Timestamp
from headrace.api import changelog_inference
from headrace.errors import UserFunctionError
from headrace.operators import ValidFrom, ValidTo
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.changed_jobs import (
    Change,
    Customer,
    CustomerVersion,
    changes_of,
    give,
    harness_of,
    stream_of,
    versions,
)
from tests.unit.support.changelog_table import by_fields, table_of

INSERT, BEFORE, AFTER, DELETE = RowKind
FOREVER = Lifetime.FOREVER
LETTERS = {"field": "kind", "u": "+U", "d": "-D"}


class Step(Struct, frozen=True):
    """An event in a transaction, with its number there."""

    id: int
    commit: datetime
    number: int
    tier: str


class Period(Struct, frozen=True):
    id: int
    tier: str
    begins: Annotated[datetime, ValidFrom()]
    begins_at: Annotated[int, ValidFrom("number")]
    ends: Annotated[datetime | None, ValidTo("commit")]


def by_transaction(record=Period):
    return {
        "key": ("id",),
        "sequence_by": ("commit", "number"),
        "history": History.SCD2,
        "record": record,
        "corrections": FOREVER,
    }


class TimedStep(Step, frozen=True, kw_only=True):
    at: Timestamp = 0


def steps(**options):
    source = Pipeline("shop").source("steps", TimedStep, event_time="at")
    return source.apply_changes("periods", **by_transaction(), **options)


def test_several_fields_order_events():
    first, second = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    events = [TimedStep(1, first, 2, "b"), TimedStep(1, first, 1, "a"), TimedStep(1, second, 1, "c")]
    for order in permutations(events):
        with KeyedHarness(steps().operators[-1].function, key=lambda step: step.id) as harness:
            for event in order:
                harness.process(event, timestamp=0)
            assert table_of(harness.kinds(), Period) == [
                Period(1, "a", first, 1, first),
                Period(1, "b", first, 2, second),
                Period(1, "c", second, 1, None),
            ]


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (str, ["a", "b", "c"]),
        (float, [-math.pi, 0.0, 2.5]),
        (date, [date(2026, 1, 1), date(2026, 1, 2), date(2027, 1, 1)]),
        (Annotated[Decimal, Digits(9, 2)], [Decimal("-1.50"), Decimal("0.00"), Decimal("10.25")]),
        (Timestamp, [-5, 0, 7]),
    ],
)
def test_sequence_may_have_any_order(annotation, values):
    fields = [("id", int), ("place", annotation), ("at", Timestamp)]
    bounds = [("valid_from", annotation), ("valid_to", annotation | None)]
    event = msgspec.defstruct("Event", fields, frozen=True)
    version = msgspec.defstruct("Version", [*fields[:2], *bounds], frozen=True)
    source = Pipeline("shop").source("events", event, event_time="at")
    stream = source.apply_changes(
        "v",
        key=("id",),
        sequence_by="place",
        history=History.SCD2,
        record=version,
        track=("place",),
        corrections=FOREVER,
    )
    low, middle, high = values
    with KeyedHarness(stream.operators[-1].function, key=lambda record: record.id, backend="delta") as harness:
        for place in (high, low, middle):
            harness.process(event(1, place, 0), timestamp=0)
        harness.pause(1)
        bounds = [(row.valid_from, row.valid_to) for row in table_of(harness.kinds(), version)]
        assert {*bounds} == {(low, middle), (middle, high), (high, None)}


@pytest.mark.parametrize("history", History)
def test_row_kinds_decide_deletions(history):
    changes = Pipeline("shop").source("changes", Change, event_time="at", row_kind="kind").drop_update_before("id")
    stream = changes.apply_changes("customers", **changes_of(history, deletes=None))
    key = ("id", "valid_from") if history is History.SCD2 else ("id",)
    harness = PipelineHarness(stream.upsert_materialize("m", primary_key=key).sink("out"), bucket=1)
    events = [
        Change("x", 4, 1, "d"),
        Change("x", 2, 2, "u", "a"),
        Change("x", 9, 3, "u", "old"),
        Change("x", 6, 4, "u", "b"),
    ]
    harness.feed("changes", events, kinds=[DELETE, AFTER, BEFORE, INSERT])
    assert harness.run().quarantined == 0
    known = [event for event in events if event.tier != "old"]
    expected = versions(known) if history is History.SCD2 else [Customer("x", "b", None)]
    assert by_fields(harness.sink("out")) == expected


class Ask(AsyncFunction[Change, Change]):
    async def invoke(self, change, /):
        return [change]


class Whole(Struct, frozen=True):
    """A change whose fields all have values."""

    id: str
    lsn: int
    at: Timestamp
    tier: str


class WholeVersion(Struct, frozen=True):
    id: str
    tier: str
    valid_from: int
    valid_to: int | None


def test_deletion_needs_key_and_sequence():
    source = Pipeline("shop").source("changes", Whole, event_time="at", row_kind=LETTERS)
    stream = source.apply_changes("v", **changes_of(History.SCD2, record=WholeVersion, deletes=None))
    pipeline = stream.upsert_materialize("m", primary_key=("id", "valid_from")).sink("out")
    harness = PipelineHarness(pipeline, bucket=1, job={"sources": {"changes": {"max_quarantined": "none"}}})
    rows = {
        "kind": ["d", "u", "d"],
        "id": ["x", "x", "x"],
        "lsn": [5, 2, None],
        "at": [1, 2, 3],
        "tier": [None, "a", None],
    }
    harness.feed_table("changes", pa.table(rows))
    assert harness.run().quarantined == 1
    (error,) = harness.table("quarantine").to_pylist()
    assert error["error"].startswith("lsn is null")
    assert harness.sink("out") == [WholeVersion("x", "a", 2, 5)]


def test_late_side_gets_whole_deletions():
    source = Pipeline("shop").source("changes", Whole, event_time="at", row_kind=LETTERS)
    stream = source.apply_changes("v", **changes_of(History.SCD2, record=WholeVersion, deletes=None))
    stream.side("late", Whole)
    assert stream.operators[-1].function.needs_keys_of_deletions is False


def test_undeclared_retraction_fails_the_run():
    with harness_of(History.SCD1) as harness, pytest.raises(UserFunctionError, match="drop_update_before"):
        harness.process(Change("x", 1, 0, "u"), timestamp=0, kind=BEFORE)


def test_order_of_arrival_may_be_any():
    inserts = Pipeline("shop").source("changes", Change, event_time="at")
    asked = inserts.async_wait("ask", Ask(), mode=OutputMode.UNORDERED, timeout=None)
    table = asked.apply_changes("customers", **changes_of(History.SCD1))
    assert str(changelog_inference.changes_of(table._use())) == "retract; unique by id"


def test_predicate_decides_deletions():
    with harness_of(History.SCD1, deletes=lambda change: change.op in {"d", "x"}) as harness:
        give(harness, Change("x", 1, 0, "u", "a"), Change("x", 2, 0, "x"))
        assert [kind for kind, _ in harness.kinds()] == [INSERT, DELETE]


@pytest.mark.parametrize(
    ("stream", "shown"),
    [
        (lambda: stream_of(History.SCD1), "retract; unique by id"),
        (lambda: stream_of(History.SCD2), "retract; unique by id, valid_from"),
        (lambda: stream_of(History.SCD1, ignore_nulls=True), "retract; unique by id"),
        (steps, "retract; unique by id, begins, begins_at"),
    ],
)
def test_unique_keys_are_known(stream, shown):
    assert str(changelog_inference.changes_of(stream()._use())) == shown


def test_explain_shows_the_rules():
    options = {"track": ("tier",), "corrections": timedelta(days=7), "tombstones": timedelta(days=30)}
    assert stream_of(History.SCD2, **options).operators[-1].function.described() == {
        "history": "every version of a key",
        "ordered_by": "lsn",
        "equal_sequences": "an equal event is dropped, another one goes to the quarantine",
        "deleted_keys": "are known for 30d of event time",
        "opens_a_version": "a change of tier",
        "late_events": "are dropped",
        "state_kept": "a row for each event of a key; a timer for each length of corrections that has events",
        "corrections": "an event can be put before another one for 7d of event time",
        "state_freed": "events before the last one that is final; all of a deleted key",
    }
    shown = stream_of(History.SCD1, ignore_nulls=True).operators[-1].function.described()
    assert shown["nulls"] == "keep the value before them"
    assert shown["deleted_keys"] == "are known for ever (Lifetime.FOREVER)"


# ------------------------------------------------------------------------------------------------------------- refusals


class NoBounds(Struct, frozen=True):
    id: str
    valid_from: int


class OtherType(Struct, frozen=True):
    id: str
    valid_from: str
    valid_to: str | None


class AlwaysEnds(Struct, frozen=True):
    id: str
    valid_from: int
    valid_to: int


class More(CustomerVersion, frozen=True, kw_only=True):
    note: str = ""


class NoKey(Struct, frozen=True):
    valid_from: int
    valid_to: int | None


class WrongMark(Struct, frozen=True):
    id: str
    valid_from: Annotated[int, ValidFrom("at")]
    valid_to: int | None


class Marked(Customer, frozen=True, kw_only=True):
    begins: Annotated[int, ValidFrom()]


class OtherTier(CustomerVersion, frozen=True):
    tier: int | None


class Free(Struct, frozen=True):
    id: str
    lsn: Any
    at: Timestamp


def free():
    source = Pipeline("shop").source("changes", Free, event_time="at")
    return source.apply_changes("customers", key=("id",), sequence_by="lsn")


def with_kinds(*key, deletes=None):
    """A table of rows with kinds: a stream of upserts of a key, or without one, rows that take others back."""
    source = Pipeline("shop").source("changes", Change, event_time="at", row_kind="kind")
    changes = source.drop_update_before(*key) if key else source
    return changes.apply_changes("customers", **changes_of(History.SCD1, deletes=deletes))


SCD1, SCD2 = History.SCD1, History.SCD2


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: stream_of(SCD1, key=()), r'needs the fields of the key, .* sequence_by="lsn"'),
        (lambda: stream_of(SCD1, sequence_by=()), "and those that order the events"),
        (lambda: stream_of(SCD2, track="tier"), r"track takes several names"),
        (lambda: stream_of(SCD1, key=("sku",)), "Change has no field 'sku'"),
        (lambda: stream_of(SCD1, sequence_by="place"), "Change has no field 'place'"),
        (lambda: stream_of(SCD1, deletes=("kind", "d")), "Change has no field 'kind'"),
        (lambda: stream_of(SCD1, deletes=5), "takes a function"),
        (free, "'lsn' is Any, and only int"),
        (lambda: stream_of(SCD1, tombstones=None), r"deleted keys would be kept for good: give tombstones=timedelta"),
        (lambda: stream_of(SCD1, tombstones=5), "tombstones must be a timedelta or Lifetime.FOREVER, not 5"),
        (lambda: stream_of(SCD1, tombstones=timedelta(0)), "tombstones must be at least 1 ms, not 0:00:00"),
        (lambda: stream_of(SCD1, deletes=None), "no event deletes, so tombstones= has no effect"),
        (lambda: with_kinds("id", deletes=("op", "d")), "the rows have kinds, and those of kind -D delete"),
        (lambda: stream_of(SCD2, corrections=None), "all events of each key would be kept for good: give corrections="),
        (lambda: stream_of(SCD1, ignore_nulls=True, corrections=None), "give corrections="),
        (lambda: stream_of(SCD1, corrections=FOREVER), "corrections= has no effect"),
        (lambda: stream_of(SCD1, track=("tier",)), "History.SCD1 has none"),
        (lambda: stream_of(SCD2, track=("op",)), "track has op, and CustomerVersion takes no such field of Change"),
        (lambda: stream_of(SCD2, record=None), "Change needs the fields 'valid_from' and 'valid_to'"),
        (lambda: stream_of(SCD2, record=NoBounds), "NoBounds needs the fields 'valid_from' and 'valid_to'"),
        (lambda: stream_of(SCD2, record=OtherType), r"'valid_from' of OtherType is str, but ValidFrom\(.*\) gives int"),
        (lambda: stream_of(SCD2, record=AlwaysEnds), r"'valid_to' of AlwaysEnds is int, but .* gives int \| None"),
        (lambda: stream_of(SCD2, record=More), r"'note' of More is none of Change: leave it out, or mark it"),
        (lambda: stream_of(SCD2, record=NoKey), "NoKey has no field id: a row needs its key"),
        (lambda: stream_of(SCD2, record=WrongMark), r"marked by ValidFrom\(field='at'\), and sequence_by has lsn"),
        (lambda: stream_of(SCD2, record=OtherTier), r"'tier' of OtherTier is int \| None, but field 'tier' gives str"),
        (lambda: stream_of(SCD1, record=CustomerVersion), "'valid_from' of CustomerVersion is none of Change"),
        (lambda: stream_of(SCD1, record=Marked), "begins of Marked: a row of History.SCD1 has no versions"),
        (lambda: stream_of(SCD1, record=5), "5 is not a type of records"),
        (with_kinds, r"gets retract: its -U and -D hold old rows.*drop_update_before\('id',\) before it"),
        (lambda: with_kinds("city"), r"identified by \('city',\), not by \('id',\)"),
    ],
)
def test_rules_that_cannot_be_are_refused(build, reason):
    with pytest.raises((TypeError, ValueError), match=f"apply_changes 'customers'.*{reason}"):
        build()


class Op(enum.Enum):
    CREATE = "c"
    DELETE = "d"


class Lettered(Struct, frozen=True):
    id: int
    at: Timestamp
    op: Op
    letter: Literal["c", "d"] = "c"
    is_gone: bool = False


def lettered(deletes):
    source = Pipeline("letters").source("rows", Lettered, event_time="at")
    return source.apply_changes("kept", key=("id",), sequence_by="at", deletes=deletes, tombstones=FOREVER)


@pytest.mark.parametrize("deletes", [("op", "d"), ("op", Op.DELETE), ("letter", "d"), ("is_gone", True)])
def test_value_of_a_field_deletes(deletes):
    harness = PipelineHarness(lettered(deletes).sink("kept", key="id"))
    harness.feed("rows", [Lettered(1, 1, Op.CREATE), Lettered(1, 2, Op.DELETE, "d", is_gone=True)])
    harness.run(end_of_input=True)
    assert harness.sink("kept") == []


@pytest.mark.parametrize("deletes", [("op", "x"), ("letter", "D"), ("is_gone", "true"), ("id", "1")])
def test_value_that_never_comes_is_refused(deletes):
    with pytest.raises(
        TypeError, match=f"apply_changes 'kept': deletes=.*field '{deletes[0]}' of Lettered cannot hold"
    ):
        lettered(deletes)
