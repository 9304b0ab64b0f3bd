"""Rows that are taken out of a history by their number: every rule holds as for a retraction that finds that very row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, OnConflict, RowKind, Strategy
from headrace.execution.element import Element
from headrace.materializer.stored_history import history_entry, rows_of
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.options import Layouts
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.entries import rebuild
from tests.unit.materializer.test_materializer_lifetimes import Row
from tests.unit.materializer.test_materializer_restarts import (
    AnyTtl,
    apply,
    choices,
    events,
    policies,
    upsert_keys,
)
from tests.unit.support.arrow_tables import views_of
from tests.unit.support.fuzzing import examples


class WithEdits(AnyTtl):
    """One materializer of which rows are taken out between micro-batches, as an edit does it."""

    def take_out(self, key, place, choices):
        model = self.models.get(key)
        if model is None or not model.rows:
            return
        self.checkpoint += 1
        self.choose(model, choices)
        place %= len(model.rows)
        backend = HashMapBackend()
        rebuild(backend, views_of(self.tables), "lines", KeyGroupRange(0, 127))
        number = rows_of(backend.get_many([history_entry(encode(key))])[0])[place][0]
        task = UpsertMaterializer(
            replace(choices.operator, emit=Emit.EVERY_CHANGE),
            backend,
            record=Row,
            layouts=Layouts(choices.strategy, *choices.thresholds),
            watermark=self.watermark,
            ttl_since=self.since,
        )
        row, at = model.rows[place][0], self.now
        task.take_out(Element(record_order(self.ordinal), at, RowKind.DELETE, encode(key), row), number)
        self.ordinal += 1
        if choices.policy is not OnConflict.KEEP_HISTORY and self.watermark is not None:
            at = max(at, self.watermark + 1)
        if choices.has_ttl:
            at = max([at, *(inserted_at for _, inserted_at in model.rows)])
        model.emitted = []
        model.remove(row, at, place)
        apply(self.expected, model.emitted)
        apply(self.sink, model.emitted)
        assert [out.kind for out in task.outputs()] == [kind for kind, _ in model.emitted]
        assert [out.raw for out in task.outputs()] == [encode(shown) for _, shown in model.emitted]
        self.keep(task)
        self.backend = self.new_backend()  # local copies go
        rebuild(self.backend, views_of(self.tables), "lines", KeyGroupRange(0, 127))


edits = st.lists(st.tuples(st.sampled_from("jk"), st.integers(0, 5)), max_size=3)


@pytest.mark.parametrize("strategy", Strategy)
@examples(30)
@given(
    runs=st.lists(st.tuples(events, choices, edits), max_size=5),
    upsert_key=upsert_keys,
    has_ttl=st.booleans(),
    policy=policies,
)
def test_changes_go_on_as_after_a_retraction(backends, strategy, runs, upsert_key, has_ttl, policy):
    with backends.lent() as new:
        life = WithEdits(new)
        for part, chosen, edited in runs:
            own = replace(chosen, strategy=strategy, upsert_key=upsert_key, has_ttl=has_ttl, policy=policy)
            life.run(part, own)
            for key, place in edited:
                life.take_out(key, place, own)
            assert life.sink == life.expected


@examples(50)
@given(
    runs=st.lists(st.tuples(events, choices), min_size=1, max_size=4),
    place=st.integers(0, 9),
    upsert_key=upsert_keys,
)
def test_history_equals_stream_without_the_row(backends, runs, place, upsert_key):
    """The row's own additions are left out of the other stream: those that the row in the history came from."""
    with backends.lent() as new:
        life, last = WithEdits(new), None
        for part, chosen in runs:
            last = replace(chosen, upsert_key=upsert_key, has_ttl=False, policy=OnConflict.KEEP_HISTORY)
            life.run(part, last)
        model = life.models.get("k")
        if model is None or not model.rows:
            return
        rows = _with_origins([event for part, _ in runs for event in part if event[1] == "k"], upsert_key)
        without = rows[place % len(rows)][1]
        life.take_out("k", place, last)
        left = [event for part, _ in runs for event in part if event[1] == "k"]
        expected = [row for row, _ in _with_origins(left, upsert_key, without)]
        assert [row for row, _ in model.rows] == expected
        backend = HashMapBackend()
        rebuild(backend, views_of(life.tables), "lines", KeyGroupRange(0, 127))
        stored = backend.get_many([history_entry(encode("k"))])[0]
        assert [row[1] for row in ([] if stored is None else rows_of(stored))] == [encode(row) for row in expected]


def _with_origins(changes, upsert_key, without=()):
    """Return the rows of a key's history, each with the numbers of the additions that it came from."""
    rows = []
    for index, (what, key, part, text, _) in enumerate(changes):
        if what == "watermark" or index in without:
            continue
        row = Row(key, part, text)
        identity = (lambda own: own) if upsert_key is None else (lambda own: getattr(own, upsert_key[0]))
        same = [at for at, (own, _) in enumerate(rows) if identity(own) == identity(row)]
        if what.is_retraction:
            rows = [own for at, own in enumerate(rows) if at not in same[:1]]
        elif same and upsert_key is not None:
            rows[same[0]] = (row, {*rows[same[0]][1], index})
        else:
            rows.append((row, {index}))
    return rows
