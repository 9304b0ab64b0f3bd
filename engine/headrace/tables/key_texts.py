"""The JSON texts that a key may be stored as, for a key as people write it."""

from __future__ import annotations

import msgspec

_EXACT = 1 << 53
"""Integers from which on not each is a float."""


def key_texts(key: str) -> list[str]:
    """Return the JSON texts that `key` may stand for: itself if it is JSON, a number as a float too, and its text as a JSON string."""
    texts = [msgspec.json.encode(key).decode()]
    try:
        value = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return texts
    texts.insert(0, msgspec.json.encode(value).decode())
    if type(value) is int and abs(value) < _EXACT:
        texts.append(msgspec.json.encode(float(value)).decode())
    return texts
