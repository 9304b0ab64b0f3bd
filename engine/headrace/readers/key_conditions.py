"""Conditions that find the rows of a key that a user has written."""

from __future__ import annotations

from headrace.state.key_groups import key_group
from headrace.tables.key_texts import key_texts
from headrace.tables.predicate import Condition, OneOf


def key_conditions(key: str, max_parallelism: int) -> list[Condition]:
    """Return the conditions for rows of one key. `key` is JSON, or a text key without quotes."""
    candidates = key_texts(key)
    groups = {key_group(text.encode(), max_parallelism) for text in candidates}
    return [OneOf("key_group", tuple(sorted(groups))), OneOf("key", tuple(candidates))]
