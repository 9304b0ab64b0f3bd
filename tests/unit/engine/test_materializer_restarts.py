"""A job's materializer after its pipeline, strategy, backend or parallelism has changed."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.api import Emit, OnConflict, RowKind, Strategy, UpsertMaterialize
from engine.checkpoint import changelog
from engine.checkpoint.changelog import Changelog
from engine.checkpoint.tables import MATERIALIZER_HISTORY, STATE_TABLES
from engine.execution.element import Element, record_order
from engine.materializer import Layouts, UpsertMaterializer
from engine.state.backend import HashMapBackend
from engine.state.codec import encode
from engine.state.key_groups import key_group, key_group_range
from engine.testing import MaterializerHarness
from tests.unit.engine.micro_batches import GROUPS, fake_delta, no_rows
from tests.unit.engine.test_materializer_lives import EVENT, THRESHOLDS, Model, Row

changes = st.lists(st.tuples(st.sampled_from(RowKind), st.integers(0, 3), st.sampled_from("ab")), max_size=12)
kinds_of_life = st.tuples(
    st.sampled_from([None, ("part",), ("text",)]),
    st.booleans(),
    st.sampled_from([Strategy.VALUE, Strategy.MAP, Strategy.ADAPTIVE]),
    changes,
)


@given(runs=st.lists(kinds_of_life, max_size=5))
def test_upsert_key_and_ttl_may_come_and_go_between_runs(backends, runs):
    model, snapshot, now, mark = Model(None, Strategy.VALUE, OnConflict.KEEP_HISTORY, has_ttl=False), None, 0, 0
    with backends.lent() as new:
        for upsert_key, has_ttl, strategy, part in runs:
            options = {"upsert_key": upsert_key, "ttl": EVENT if has_ttl else None, "strategy": strategy, **THRESHOLDS}
            options |= {"primary_key": ("key",), "backend": new()}
            h = (
                MaterializerHarness(Row, **options)
                if snapshot is None
                else MaterializerHarness.restore(snapshot, Row, **options)
            )
            model.upsert_key, model.has_ttl = upsert_key, has_ttl
            model.emitted.clear()
            for kind, number, text in part:
                now += 1
                h.process(kind, Row("k", number, text), now)
                model.take(kind, Row("k", number, text), now, mark or None)
            assert h.output() == model.emitted
            mark = max(mark, now - 3)
            h.watermark(mark)
            model.end(mark)
            assert h.history("k") == [row for row, _ in model.rows]
            snapshot = h.snapshot()
            h.close()


@given(
    runs=st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from(Strategy),
            st.lists(st.tuples(st.sampled_from(RowKind), st.sampled_from("abcdefgh"), st.integers(0, 2)), max_size=20),
        ),
        max_size=4,
    )
)
def test_other_numbers_of_tasks_rebuild_their_share_and_go_on(runs):
    tables, model, ordinal = no_rows(), {}, itertools.count(1)
    for checkpoint, (parallelism, strategy, part) in enumerate(runs):
        elements = []
        for kind, key, number in part:
            row = Row(key, number)
            elements.append(Element(record_order(next(ordinal)), 0, kind, encode(key), encode(row)))
        emitted, rows = [], []
        for task in range(parallelism):
            groups, backend = key_group_range(task, GROUPS, parallelism), HashMapBackend()
            with fake_delta(tables):
                changelog.rebuild(backend, "job", dict.fromkeys(STATE_TABLES, 0), "lines", groups)
            operator = UpsertMaterialize("lines", ("key",), None, strategy, Emit.EVERY_CHANGE)
            worker = UpsertMaterializer(operator, backend, record=Row, layouts=Layouts(strategy, 3, 1))
            worker.run([[one for one in elements if key_group(one.key_json, GROUPS) in groups]])
            emitted += worker.outputs()
            rows.append(Changelog("lines", checkpoint, GROUPS).history(worker.changes(), lambda _: None))
        tables[MATERIALIZER_HISTORY] += rows
        expected = []
        for kind, key, number in part:
            one = model.setdefault(key, Model(None, strategy, OnConflict.KEEP_HISTORY, has_ttl=False))
            one.emitted.clear()
            one.take(kind, Row(key, number), 0, None)
            expected += one.emitted
        assert [(out.kind, out.raw) for out in sorted(emitted)] == [(kind, encode(row)) for kind, row in expected]
