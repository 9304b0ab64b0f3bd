"""A materializer that is not needed: the last change of each key, and no history."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, RowKind, Strategy, Struct, UpsertMaterialize
from headrace.execution.element import Element
from headrace.materializer.pass_through import PassThrough
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class Row(Struct, frozen=True):
    key: str
    level: float


def operator(emit):
    return UpsertMaterialize("board", ("key",), ("key",), Strategy.ADAPTIVE, emit)


def elements(changes):
    return [
        Element(record_order(number), number, kind, encode(row.key), row)
        for number, (kind, row) in enumerate(changes, 1)
    ]


def passed(changes, emit=Emit.NET_CHANGE):
    task = PassThrough(operator(emit), HashMapBackend(), record=Row)
    task.run([elements(changes)])
    assert task.metrics == {"records": len(changes)}
    return [(out.kind, msgspec.json.decode(out.raw, type=Row)) for out in task.outputs()]


def test_last_change_of_each_key_is_emitted():
    a, b, c = Row("k", 1), Row("k", 2), Row("j", 3)
    assert passed([(INSERT, a), (INSERT, c), (UPDATE_BEFORE, a), (UPDATE_AFTER, b), (DELETE, c)]) == [
        (UPDATE_AFTER, b),
        (DELETE, c),
    ]


def test_row_before_an_update_deletes_its_key():
    a, b = Row("k", 1), Row("k", 2)
    changes = [(INSERT, a), (UPDATE_BEFORE, a), (UPDATE_AFTER, b), (DELETE, b)]
    assert passed(changes[:2]) == [(DELETE, a)]
    assert [kind for kind, _ in passed(changes, Emit.EVERY_CHANGE)] == [INSERT, DELETE, UPDATE_AFTER, DELETE]


@given(
    updates=st.lists(st.tuples(st.sampled_from("jk"), st.integers(0, 3) | st.none()), max_size=30),
    size=st.integers(1, 5),
)
def test_table_equals_that_of_a_history(updates, size):
    # Within each key the changelog is in order, as it is if the upsert key is the primary key. A filter refuses the level 0.
    live, changes = {}, []
    for key, level in updates:
        old = live.pop(key, None)
        if level is None:
            changes += [(DELETE, old)] if old else []
            continue
        live[key] = Row(key, float(level))
        changes += [(UPDATE_BEFORE, old), (UPDATE_AFTER, live[key])] if old else [(INSERT, live[key])]
    backend, tables = HashMapBackend(), ({}, {})
    ordered = elements([(kind, row) for kind, row in changes if row.level])
    for first in range(0, len(ordered), size):
        kept = UpsertMaterializer(operator(Emit.NET_CHANGE), backend, record=Row)
        plain = PassThrough(operator(Emit.NET_CHANGE), HashMapBackend(), record=Row)
        tasks: tuple[UpsertMaterializer | PassThrough, ...] = (kept, plain)
        for task, table in zip(tasks, tables, strict=True):
            task.run([ordered[first : first + size]])
            for _, kind, key, raw in task.outputs():
                table[key] = raw
                if kind is DELETE:
                    del table[key]
        backend.write_batch(kept.writes())
    assert tables[0] == tables[1] == {encode(key): encode(row) for key, row in live.items() if row.level}
