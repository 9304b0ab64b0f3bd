"""Keys of whole columns: their JSON, which are the bytes of `codec.encode` of each key, and their key groups."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.codec import encode
from headrace.state.key_groups import key_groups_of

_ESCAPED = bytes(range(0x20)) + b'"\\'
"""Bytes that JSON escapes in a text."""

_AT_ONCE: Final = 20_000
"""Keys that are Python objects at once: so many stay in the processor's cache."""


def key_json_column(*columns: pa.Array) -> pa.BinaryArray:
    """Return the key of each row as JSON: the value of one column, or a list of several.

    The columns have types that records have between stages. A key is null if any of its values is; -0.0 becomes 0.0, as
    in `records.keys`.
    """
    texts = [_json(column) for column in columns]
    if len(texts) == 1:
        return texts[0]
    listed = pc.binary_join_element_wise(*texts, pa.scalar(b","))
    return pc.binary_join_element_wise(pa.scalar(b"["), listed, pa.scalar(b"]"), pa.scalar(b""))


def key_group_column(keys: pa.BinaryArray, max_parallelism: int) -> pa.Int32Array:
    """Return the key group of each key, given as JSON. Where many rows share a key, it is hashed once."""
    if 2 * len(keys[:_AT_ONCE].unique()) <= len(keys[:_AT_ONCE]):
        encoded = keys.dictionary_encode()
        return _groups_of(encoded.dictionary, max_parallelism).take(encoded.indices)
    return _groups_of(keys, max_parallelism)


def _groups_of(keys: pa.BinaryArray, max_parallelism: int) -> pa.Int32Array:
    groups = np.empty(len(keys), np.int32)
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE].to_pylist()
        groups[start : start + len(some)] = key_groups_of(some, max_parallelism)
    return pa.array(groups)


def names_within(keys: pa.BinaryArray, namespaces: pa.StringArray) -> list[bytes]:
    """Return the name of each key in a namespace that is not empty, as `within` does."""
    names: list[bytes] = pc.binary_join_element_wise(keys, namespaces.cast(pa.binary()), pa.scalar(b"\x00")).to_pylist()
    return names


def _json(column: pa.Array) -> pa.BinaryArray:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_string(kind) and _is_plain(column):
        quote = pa.scalar(b'"')
        return pc.binary_join_element_wise(quote, column.cast(pa.binary()), quote, pa.scalar(b""))
    if pa.types.is_nested(kind):
        return _encoded(column.to_pylist(maps_as_pydicts="strict"))
    distinct = (pc.add(column, 0.0) if pa.types.is_floating(kind) else column).dictionary_encode()
    return _encoded(distinct.dictionary.to_pylist()).take(distinct.indices)


def _is_plain(column: pa.StringArray) -> bool:
    """Return whether JSON escapes none of the texts."""
    _, offsets, data = column.buffers()
    if data is None:
        return True
    bounds = memoryview(offsets).cast("b").cast("i")
    text = data[bounds[column.offset] : bounds[column.offset + len(column)]].to_pybytes()
    return len(text.translate(None, _ESCAPED)) == len(text)


def _encoded(values: list[Any]) -> pa.BinaryArray:
    return pa.array([None if value is None else encode(value) for value in values], pa.binary())
