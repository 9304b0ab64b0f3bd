"""Names and stored values of entries in a backend, and the changes that a task reports.

    single value        v <state> 00 <key> [00 <namespace>]
    element or entry    e <state> 00 <key> 00 <namespace> 00 <user key>

Key and user key are JSON text without raw zero bytes, and a namespace has none either, so the parts are unambiguous.
All entries of a key in one namespace of a list or map (a *group*) are adjacent, in the order of the user keys' text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace.state.backend import GROUPED_PREFIX, VALUE_PREFIX

_HEADER = struct.Struct(">qq")
HEADER_SIZE = _HEADER.size
pack_header = _HEADER.pack
"""Packs TTL stamp and own lifetime of a backend's value."""
unpack_header = _HEADER.unpack_from
"""Unpacks TTL stamp and own lifetime of a backend's value."""


def value_entry(state: str, key_json: bytes, namespace: str = "") -> bytes:
    """Return the entry of a key's single value: of a value state, or an accumulator."""
    return b"%b%b\x00%b" % (VALUE_PREFIX, state.encode(), within(key_json, namespace))


def within(key_json: bytes, namespace: str) -> bytes:
    """Return the name of a key in a namespace, for single values; the empty namespace adds nothing."""
    return b"%b\x00%b" % (key_json, namespace.encode()) if namespace else key_json


def entry_group(state: str, key_json: bytes, namespace: str = "") -> bytes:
    """Return the common prefix of all entries of a key's list or map in a namespace."""
    return b"%b%b\x00%b\x00%b\x00" % (GROUPED_PREFIX, state.encode(), key_json, namespace.encode())


def entry_groups(state: str, key_json: bytes) -> bytes:
    """Return the common prefix of the entries that a key has in a list or map, in all namespaces."""
    return b"%b%b\x00%b\x00" % (GROUPED_PREFIX, state.encode(), key_json)


class NamedEntry(NamedTuple):
    """Parts of an entry's name. `user_key` is None for a single value."""

    state: str
    key_json: bytes
    namespace: str
    user_key: bytes | None


def named(entry: bytes) -> NamedEntry:
    """Return the parts of an entry of keyed state."""
    state, key_json, *rest = entry[1:].split(b"\x00")
    namespace = rest[0].decode() if rest else ""
    return NamedEntry(state.decode(), key_json, namespace, rest[1] if entry[:1] == GROUPED_PREFIX else None)


class StoredValue(NamedTuple):
    """Parts of a backend's value: TTL stamp (ms), own lifetime (ms; 0: the state's), JSON."""

    stamp: int
    own_ttl: int
    raw: bytes


def stored_value(stamp: int, raw: bytes, own_ttl: int = 0) -> bytes:
    """Return the backend's value: stamp and own lifetime, 8 bytes each, and JSON."""
    return pack_header(stamp, own_ttl) + raw


def unpacked(stored: bytes) -> StoredValue:
    """Return the parts of a backend's value."""
    stamp, own_ttl = unpack_header(stored)
    return StoredValue(stamp, own_ttl, stored[HEADER_SIZE:])


class EntryChange(NamedTuple):
    """An entry after the task; `raw` is None if it was removed. `own_ttl` is 0 if it has the state's lifetime."""

    key_json: bytes
    raw: bytes | None
    stamp: int
    own_ttl: int = 0
    namespace: str = ""
    user_key: bytes | None = None

    def entry(self, state: str) -> bytes:
        """Return the entry's name in the backend."""
        if self.user_key is None:
            return value_entry(state, self.key_json, self.namespace)
        return entry_group(state, self.key_json, self.namespace) + self.user_key


change_of: Callable[[tuple[bytes, bytes | None, int, int, str, bytes | None]], EntryChange] = partial(
    tuple.__new__, EntryChange
)
"""As `EntryChange._make`, in half the time: called once for each changed entry of a task."""
