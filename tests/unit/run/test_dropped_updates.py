"""Changes without the rows before updates: the same rows whether they travel as columns or as records."""

from __future__ import annotations

import pytest

from headrace import KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp
from headrace.api.graph import DropUpdateBefore
from headrace.execution.element import Emitted
from headrace.run.transforms import applied
from headrace.testing import PipelineHarness


class Change(Struct, frozen=True):
    id: int
    at: Timestamp
    kind: str = ""


CHANGES = [Change(1, 10), Change(1, 20), Change(1, 30), Change(2, 40), Change(1, 50)]
KINDS = [RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.INSERT, RowKind.DELETE]
LEFT = [(10, "+I"), (30, "+U"), (40, "+I"), (50, "-D")]


class Noted(KeyedProcessFunction[Change, Change]):
    async def process(self, change, ctx, /):
        ctx.collect(Change(change.id, change.at, ctx.row_kind.symbol))


def same(change: Change) -> Change:
    return change


def taken(build):
    p = Pipeline("shop")
    changes = p.source("changes", Change, event_time="at", row_kind="row_kind")
    build(changes).key_by("id").process("noted", Noted()).sink("seen")
    harness = PipelineHarness(p)
    harness.feed("changes", CHANGES, kinds=KINDS)
    harness.run()
    return sorted((change.at, change.kind) for change in harness.sink("seen"))


@pytest.mark.parametrize(
    "build",
    [
        lambda changes: changes.drop_update_before("id"),
        lambda changes: changes.map(same).drop_update_before("id"),
        lambda changes: changes.drop_update_before("id").map(same, keeps=("id",)),
        lambda changes: changes.drop_update_before("id").drop_update_before(),
    ],
)
def test_rows_before_updates_are_dropped(build):
    assert taken(build) == LEFT


def test_other_uses_keep_rows_before_updates():
    def build(changes):
        changes.drop_update_before("id").sink("few")
        return changes.map(same)

    assert taken(build) == sorted((change.at, kind.symbol) for change, kind in zip(CHANGES, KINDS, strict=True))


def test_dropped_records_leave_others_unchanged():
    rows = [Emitted(b"%d" % at, at, int(kind), None) for at, kind in enumerate(KINDS)]
    assert list(applied(DropUpdateBefore(), rows)) == [rows[0], *rows[2:]]
