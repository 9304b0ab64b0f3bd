"""Finding a key as people write it: the conditions on rows of a state table."""

from __future__ import annotations

import msgspec

from headrace.state.key_groups import key_group
from headrace.tables.predicate import Condition, OneOf

_EXACT = 1 << 53
"""Integers from which on not each is a float."""


def key_conditions(key: str, max_parallelism: int) -> list[Condition]:
    """Return the conditions on rows of one key. `key` is JSON, or the bare text of a text key."""
    candidates = _candidates(key)
    groups = {key_group(text.encode(), max_parallelism) for text in candidates}
    return [OneOf("key_group", tuple(sorted(groups))), OneOf("key", tuple(candidates))]


def _candidates(key: str) -> list[str]:
    """The JSON texts that `key` may stand for: itself if it is JSON, a number as a float too, and its text as a JSON string."""
    candidates = [msgspec.json.encode(key).decode()]
    try:
        value = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return candidates
    candidates.insert(0, msgspec.json.encode(value).decode())
    if type(value) is int and abs(value) < _EXACT:
        candidates.append(msgspec.json.encode(float(value)).decode())
    return candidates
