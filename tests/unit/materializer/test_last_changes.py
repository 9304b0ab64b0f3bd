"""Changes that have no effect: a materializer without them gives the same results, histories and refusals."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, OnConflict, RowKind, Strategy, Struct, UpsertMaterialize
from headrace.execution.element import Element
from headrace.materializer.identities import ChangedKeys
from headrace.materializer.pass_through import PassThrough
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.options import Layouts
from headrace.records.order import record_order
from headrace.run.materializer_stage import needed_rows
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
CHANGES = st.lists(st.tuples(st.sampled_from("jkl"), st.sampled_from(RowKind), st.integers(0, 2)), max_size=25)


class Row(Struct, frozen=True):
    key: str
    part: int


def elements(changes, first):
    return [
        Element(record_order(number), number, int(kind), encode(key), Row(key, part))
        for number, (key, kind, part) in enumerate(changes, first)
    ]


def changed_keys(taken):
    keys = [*dict.fromkeys(element.key_json for element in taken)]
    numbers = np.array([keys.index(element.key_json) for element in taken], np.int32)
    return ChangedKeys(keys, numbers, np.array([element.kind for element in taken], np.int32))


def operator(emit=Emit.NET_CHANGE, upsert_key=("key",), **options):
    return UpsertMaterialize("board", ("key",), upsert_key, Strategy.ADAPTIVE, emit, **options)


def kept(work, taken):
    """Return the elements that `work` needs, and how many they are not."""
    mask = work.needed(changed_keys(taken)) if taken else None
    return taken if mask is None else [element for element, needed in zip(taken, mask, strict=True) if needed]


def results(work, backend, taken):
    work.run([taken[:7], taken[7:]])
    changes = work.changes()
    backend.write_batch(work.writes())
    return changes, work.outputs(), work.metrics, getattr(work, "unmatched", None), sorted(backend.items())


@pytest.mark.parametrize(
    "layouts", [Layouts(Strategy.ADAPTIVE, 3, 2), Layouts(Strategy.VALUE, 9, 1), Layouts(Strategy.MAP, 9, 1)]
)
@given(slices=st.lists(CHANGES, min_size=1, max_size=3))
def test_last_changes_of_one_row_give_the_same(layouts, slices):
    backends = HashMapBackend(), HashMapBackend()
    first = 1
    for changes in slices:
        taken = elements(changes, first)
        first += len(taken)
        whole, fewer = (UpsertMaterializer(operator(), backend, record=Row, layouts=layouts) for backend in backends)
        few = kept(fewer, taken)
        assert results(fewer, backends[1], few) == results(whole, backends[0], taken)


@given(slices=st.lists(CHANGES, min_size=1, max_size=2))
def test_last_changes_pass_through_the_same(slices):
    for changes in slices:
        taken = elements(changes, 1)
        backends = HashMapBackend(), HashMapBackend()
        for backend in backends:  # histories that earlier code kept
            earlier = UpsertMaterializer(operator(), backend, record=Row)
            results(earlier, backend, elements([("j", INSERT, 1), ("l", INSERT, 2)], 1))
        whole, fewer = (PassThrough(operator(), backend, record=Row) for backend in backends)
        few = kept(fewer, taken)
        assert results(fewer, backends[1], few) == results(whole, backends[0], taken)


def test_updates_of_a_key_are_one_change():
    updates = [
        ("k", kind, part) for part in range(1, 9) for kind, part in ((UPDATE_BEFORE, part), (UPDATE_AFTER, part + 1))
    ]
    taken = elements([("k", INSERT, 1), *updates], 1)
    assert kept(UpsertMaterializer(operator(), HashMapBackend(), record=Row), taken) == taken[-1:]
    assert kept(PassThrough(operator(), HashMapBackend(), record=Row), taken) == taken[-1:]


@pytest.mark.parametrize(
    "options",
    [
        {"emit": Emit.EVERY_CHANGE},
        {"upsert_key": ("part",)},
        {"upsert_key": None},
        {"on_conflict": OnConflict.DO_NOTHING},
    ],
    ids=str,
)
def test_each_change_may_be_needed(options):
    work = UpsertMaterializer(operator(**options), HashMapBackend(), record=Row)
    assert work.needed(changed_keys(elements([("k", INSERT, 1), ("k", UPDATE_AFTER, 2)], 1))) is None


def test_rows_numbered_otherwise_need_each_change():
    backend = HashMapBackend()
    earlier = UpsertMaterializer(operator(upsert_key=("part",)), backend, record=Row)
    results(earlier, backend, elements([("k", INSERT, 1), ("k", INSERT, 2), ("k", DELETE, 1)], 1))
    work = UpsertMaterializer(operator(), backend, record=Row)
    assert work.needed(changed_keys(elements([("k", UPDATE_AFTER, 3), ("k", UPDATE_AFTER, 4)], 4))) is None


def test_needed_rows_come_from_several_batches():
    def batch(*rows):
        keys, kinds = zip(*rows, strict=True)
        return pa.record_batch({"key": pa.array(keys, pa.binary()), "kind": pa.array(kinds, pa.int32())})

    taken = [batch((b"j", 0), (b"k", 0)), batch((b"k", 2), (b"l", 0)), batch((b"j", 3))]
    work = PassThrough(operator(), HashMapBackend(), record=Row)
    rows = [row for part in needed_rows(taken, work.needed) for row in part.to_pylist()]
    assert [(row["key"], row["kind"]) for row in rows] == [(b"k", 2), (b"l", 0), (b"j", 3)]
    assert work.metrics == {"records": 2}


def test_no_rows_are_needed_of_none():
    assert [*needed_rows([], lambda _: pytest.fail("nothing to ask"))] == []
