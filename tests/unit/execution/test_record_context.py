from __future__ import annotations

from headrace.execution.record_context import RecordContext
from headrace.state.key_groups import key_group


def test_context_has_record_key_group_count_epoch():
    """A context has its record, key, key group, hash, count and epoch."""
    context = RecordContext(b'"a"', "record")
    assert (context.record, context.references, context.epoch) == ("record", 0, None)
    assert (context.key_group(128), context.hash) == (key_group(b'"a"', 128), hash(b'"a"'))
