"""Random graphs over changelogs: their tables equal those of plain loops over the rows that are left, or the graph is refused."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, Lifetime, OutputMode, Pipeline, RowKind, Struct, Timestamp
from headrace.operators import Sum, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
FOREVER = {"state_ttl": Lifetime.FOREVER}
WINDOW = 8
WAYS_OUT = ("normalize(", "drop_update_before(", "top()", "declare", "give ", "Call it before", "filter() and map(")


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    amount: int


class Total(Struct, frozen=True):
    id: str
    amount: Annotated[int, Sum("amount")]


class Windowed(Struct, frozen=True):
    id: str
    window_end: Timestamp
    amount: Annotated[int, Sum("amount")]


class Ask(AsyncFunction[Row, Row]):
    deterministic = True

    async def invoke(self, row, /):
        return answered(row)


def answered(row):
    return [row] if row.amount % 3 else []


def several(row):
    return [row] * (row.amount % 3)


def plus_one(row: Row) -> Row:
    return Row(row.id, row.at, row.amount + 1)


def without_time(row) -> Row:
    return Row(row.id, 0, row.amount)


def of_window(row: Windowed) -> Row:
    return Row(row.id, row.window_end, row.amount)


def is_large(row) -> bool:
    return row.amount > 2


def pair(left: Row, right: Row) -> Row:
    return Row(left.id, 0, 10 * left.amount + right.amount)


def by_id(rows, at=lambda _: 0):
    groups = defaultdict(list)
    for row in rows:
        groups[row.id, at(row)].append(row)
    return groups.items()


class Program:
    """A stream, and the rows that its changes leave. `is_unique`: one of each id. `is_early`: no keyed operator so far."""

    def __init__(self, stream, rows, *, is_unique, other):
        self.stream, self.rows, self.is_unique, self.is_early = stream, rows, is_unique, True
        self.other = other
        self.number = 0

    def name(self):
        self.number += 1
        return f"op_{self.number}"

    def filter(self):
        self.set(self.stream.filter(is_large), [row for row in self.rows if is_large(row)])

    def map(self):
        self.set(self.stream.map(plus_one, keeps=("id",)), [plus_one(row) for row in self.rows])

    def flat_map(self):
        rows = [copy for row in self.rows for copy in several(row)]
        self.set(self.stream.flat_map(several, record=Row, keeps=("id",)), rows, is_unique=False)

    def drop(self):
        if self.is_unique:
            self.set(self.stream.drop_update_before("id"), self.rows)

    def normalize(self):
        if self.is_unique:
            self.set(self.stream.normalize(self.name(), key=("id",)), self.rows, is_early=False)

    def ask(self):
        if self.is_early:
            stream = self.stream.async_wait(self.name(), Ask(), mode=OutputMode.ORDERED, timeout=timedelta(hours=1))
            self.set(stream, [copy for row in self.rows for copy in answered(row)])

    def union(self):
        stream, rows = self.other
        self.set(self.stream.union(stream), [*self.rows, *rows], is_unique=False, is_early=False)

    def aggregate(self):
        stream = self.stream.key_by("id").aggregate(self.name(), Total, **FOREVER)
        rows = [Row(key, 0, sum(row.amount for row in group)) for (key, _), group in by_id(self.rows)]
        self.set(stream.map(without_time, keeps=("id",)), rows, is_unique=True, is_early=False)

    def window(self):
        if not self.is_early:
            return  # behind a keyed operator event times depend on arrival
        windows = self.stream.key_by("id").window(Tumbling(timedelta(milliseconds=WINDOW)))
        stream = windows.aggregate(self.name(), Windowed, allowed_lateness=timedelta(seconds=1))
        groups = by_id(self.rows, lambda row: row.at // WINDOW)
        rows = [Row(key, (at + 1) * WINDOW, sum(row.amount for row in group)) for (key, at), group in groups]
        self.set(stream.map(of_window, keeps=("id",)), rows, is_unique=False, is_early=False)

    def top(self):
        stream = self.stream.key_by("id").top(self.name(), 1, by="amount", **FOREVER)
        rows = [Row(key, 0, max(row.amount for row in group)) for (key, _), group in by_id(self.rows)]
        self.set(stream.map(without_time, keeps=("id",)), rows, is_unique=True, is_early=False)

    def last(self):
        if self.is_early and self.is_unique is None:  # of one timestamp, arrival decides
            stream = self.stream.key_by("id").last_by_time(self.name(), **FOREVER)
            rows = [max(group, key=lambda row: row.at) for _, group in by_id(self.rows)]
            self.set(stream, rows, is_unique=True, is_early=False)

    def join(self):
        stream, rows = self.other
        joined = self.stream.key_by("id").join(self.name(), stream.key_by("id"), emit=pair, **FOREVER)
        pairs = [pair(row, partner) for row in self.rows for partner in rows if row.id == partner.id]
        self.set(joined, pairs, is_unique=False, is_early=False)

    def set(self, stream, rows, **facts):
        self.stream, self.rows = stream, rows
        self.__dict__ |= facts

    def end(self):
        """Materialize the stream, and return the table that is expected."""
        key = ("id",) if self.is_unique else Row.__struct_fields__
        upsert_key = key if self.is_unique and self.number % 2 else None  # the graph may know it
        self.stream.upsert_materialize("m", primary_key=key, upsert_key=upsert_key).sink("table")
        return {*self.rows}


STEPS = (
    "filter",
    "map",
    "flat_map",
    "drop",
    "normalize",
    "ask",
    "union",
    "aggregate",
    "window",
    "top",
    "last",
    "join",
)
UPDATES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5) | st.none()), min_size=4, max_size=12)


def changes_of(updates, times, *, retracts):
    """Return the changes of updates, whose event times are in disorder, and the rows that they leave."""
    table, changes = {}, []
    for (key, amount), at in zip(updates, times, strict=False):
        if not retracts:
            changes += [] if amount is None else [(INSERT, Row(key, at, amount))]
            continue
        before = table.pop(key, None)
        if amount is not None:
            table[key] = Row(key, at, amount)
            changes += [(UPDATE_BEFORE, before), (UPDATE_AFTER, table[key])] if before else [(INSERT, table[key])]
        elif before:
            changes.append((DELETE, before))
    return changes, [*table.values()] if retracts else [row for _, row in changes]


@st.composite
def programs(draw):
    times = draw(st.permutations(range(12)))
    pipeline, feeds, streams = Pipeline("random"), {}, []
    for name in ("one", "other"):
        retracts = draw(st.booleans())
        feeds[name], rows = changes_of(draw(UPDATES), times, retracts=retracts)
        stream = pipeline.source(name, Row, event_time="at", row_kind="op" if retracts else None)
        streams.append((stream, rows, retracts))
    (stream, rows, retracts), (second, others, _) = streams
    second.sink("other")
    program = Program(stream, rows, is_unique=True if retracts else None, other=(second, others))
    built = []
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=5)):
        nodes = len(pipeline.nodes)
        try:
            getattr(program, step)()
        except ValueError as error:
            if not any(way in str(error) for way in WAYS_OUT):
                raise
            del pipeline.nodes[nodes:]
        else:
            built.append(step)
    return pipeline, program.end(), feeds, built


def assert_table_equals_the_model(program, cut):
    pipeline, expected, feeds, built = program
    harness = PipelineHarness(pipeline, bucket=1)
    for begin, end in ((0, cut), (cut, None)):
        for name, changes in feeds.items():
            if part := changes[begin:end]:
                kinds, rows = zip(*part, strict=True)
                is_kinded = next(node.operator for node in pipeline.nodes if node.operator.name == name).row_kind
                harness.feed(name, rows, kinds=kinds if is_kinded else None)
        harness.run()
    harness.run(end_of_input=True)
    assert {*harness.sink("table")} == expected, built
    assert harness.table("quarantine").num_rows == 0


@pytest.mark.slow
@examples(3)
@given(program=programs(), cut=st.integers(0, 12))
def test_tables_equal_plain_loops(program, cut):
    assert_table_equals_the_model(program, cut)


@pytest.mark.slow
@examples(8)
@given(program=programs(), cut=st.integers(0, 12))
def test_many_tables_equal_plain_loops(program, cut):
    assert_table_equals_the_model(program, cut)
