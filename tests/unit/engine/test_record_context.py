from __future__ import annotations

import pytest

from engine.execution.controller import AsyncExecutionController
from engine.execution.options import AsyncStateOptions
from engine.execution.record_context import RecordContext
from engine.state.key_groups import key_group
from tests.unit.engine.hand_executor import HandExecutor


@pytest.fixture
def controller():
    return AsyncExecutionController(None, HandExecutor(str), AsyncStateOptions())


def test_a_context_has_its_record_key_group_hash_count_and_epoch(controller):
    context = RecordContext(controller, b'"a"', "record")
    assert (context.record, context.references, context.epoch) == ("record", 0, None)
    assert (context.key_group(128), context.hash) == (key_group(b'"a"', 128), hash(b'"a"'))


def test_only_the_record_that_runs_may_be_given_callbacks(controller):
    mine, another = (RecordContext(controller, key, None) for key in (b"1", b"2"))
    controller.context = mine
    mine.retain()
    assert mine.references == 1
    with pytest.raises(RuntimeError, match="what another record has asked for"):
        another.retain()
