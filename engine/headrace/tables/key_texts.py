"""JSON texts of a key that a user has written."""

from __future__ import annotations

import msgspec

_EXACT = 1 << 53
"""First integer from which on some integers are no floats."""


def key_texts(key: str) -> list[str]:
    """Return the JSON texts that a user may mean with `key`.

    These are `key` as a JSON string; if it is JSON, also `key` itself; if it is a whole number, also the number as a float.
    """
    texts = [msgspec.json.encode(key).decode()]
    try:
        value = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return texts
    texts.insert(0, msgspec.json.encode(value).decode())
    if type(value) is int and abs(value) < _EXACT:
        texts.append(msgspec.json.encode(float(value)).decode())
    return texts
