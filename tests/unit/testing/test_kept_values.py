"""First value, last value and deduplication: they handle retractions, on the same history as the materializer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, Keep, OnConflict, Pipeline, RowKind, StateTtl, Strategy, Struct, Timestamp, UpsertMaterialize
from headrace.testing import MaterializerHarness

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class Reading(Struct, frozen=True):
    sensor: str
    level: int
    at: Timestamp = 0


def reading(level):
    return Reading("s", level)


@pytest.fixture
def source():
    return Pipeline("readings").source("readings", Reading, event_time="at")


@pytest.mark.parametrize(("keep", "shown"), [(Keep.FIRST, [1, 2, 2]), (Keep.LAST, [1, 2, 3, 2, 2])])
def test_neighbour_replaces_the_retracted_row(backend, keep, shown):
    with MaterializerHarness(Reading, ("sensor",), keep=keep, backend=backend) as h:
        for level in (1, 2, 3):
            h.process(INSERT, reading(level))
        for level in (1, 3, 2):
            h.process(DELETE, reading(level))
        output = [(kind, row.level) for kind, row in h.output()]
        assert [level for _, level in output] == shown
        assert [kind for kind, _ in output] == [INSERT, *[UPDATE_AFTER] * (len(shown) - 2), DELETE]


def apply(table, changes):
    for change, row in changes:
        assert (row.sensor in table) is (change is not INSERT)
        if change is DELETE:
            del table[row.sensor]
        else:
            table[row.sensor] = row.level


@given(
    changes=st.lists(st.tuples(st.sampled_from(RowKind), st.integers(0, 4)), max_size=40),
    keep=st.sampled_from(Keep),
    strategy=st.sampled_from(Strategy),
    emit=st.sampled_from(Emit),
    cut=st.integers(0, 40),
)
def test_sink_holds_the_last_unretracted_row(backends, changes, keep, strategy, emit, cut):
    rows, table = [], {}
    with backends.lent() as new:
        h = MaterializerHarness(
            Reading,
            ("sensor",),
            keep=keep,
            strategy=strategy,
            emit=emit,
            threshold_high=3,
            threshold_low=1,
            backend=new(),
        )
        for number, (kind, level) in enumerate(changes):
            h.process(kind, reading(level))
            if not kind.is_retraction:
                rows.append(level)
            elif level in rows:
                rows.remove(level)
            if number % 3 == 0 or number == cut:
                apply(table, h.output())
                assert table == ({"s": rows[0 if keep is Keep.FIRST else -1]} if rows else {})
        h.close()


def test_key_is_new_after_its_row_expired(backend):
    ttl = StateTtl(timedelta(milliseconds=10))
    with MaterializerHarness(Reading, ("sensor",), keep=Keep.FIRST, ttl=ttl, backend=backend) as h:
        for at in (0, 5, 9):
            h.process(INSERT, reading(at), at)
        h.watermark(19)
        h.process(INSERT, reading(20), 20)
        assert [(kind, row.level) for kind, row in h.output()] == [(INSERT, 0), (INSERT, 20)]


def test_pipeline_sets_the_kept_values(source):
    last = source.last_value("newest", key=("sensor",)).operators[-1]
    first = source.first_value("oldest", key=("sensor",), upsert_key=("sensor", "level")).operators[-1]
    once = source.deduplicate("once", key=("sensor", "level"), keep=Keep.LAST).operators[-1]
    assert [(node.keep, node.primary_key, node.is_needed) for node in (last, first, once)] == [
        (Keep.LAST, ("sensor",), True),
        (Keep.FIRST, ("sensor",), True),
        (Keep.LAST, ("sensor", "level"), True),
    ]
    assert first.strategy is Strategy.ADAPTIVE


@pytest.mark.parametrize("policy", [OnConflict.DEDUPLICATE, OnConflict.ERROR])
def test_policy_needing_another_row_is_refused(policy):
    with pytest.raises(ValueError, match=r"'m' cannot keep the first row and \w+ on conflict"):
        UpsertMaterialize("m", ("k",), None, Strategy.MAP, Emit.NET_CHANGE, on_conflict=policy, keep=Keep.FIRST)


@pytest.mark.parametrize(
    ("upsert_key", "more", "needed"),
    [
        (None, {}, True),
        (("k",), {}, False),
        (("k", "u"), {}, True),
        (("k",), {"force": True}, True),
        (("k",), {"on_conflict": OnConflict.ERROR}, True),
        (("k",), {"ttl": StateTtl(timedelta(1))}, True),
    ],
)
def test_no_history_if_upsert_key_is_primary_key(upsert_key, more, needed):
    operator = UpsertMaterialize("m", ("k",), upsert_key, Strategy.VALUE, Emit.NET_CHANGE, **more)
    assert operator.is_needed is needed
