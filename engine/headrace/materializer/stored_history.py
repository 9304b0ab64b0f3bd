"""A key's history as entries of a backend. In Delta it has a row for each of its rows, whatever its layout here.

    h<key>                       a list: [[number, row, kind, inserted at], ...]
                                 a map:  {"size": 3, "first": 0, "last": 7, ..., "by": ["part"]}
    h<key> 00 n<number>          a map's node: [kind, inserted at, and the nodes that it is linked with], then the row
    h<key> 00 i<identity>        first and last number of the rows with this identity

A hash replaces the text of a long identity (mostly a whole row), so that a row is stored once. It is a
cryptographic hash: no two rows share it in practice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from operator import add

import msgspec

from headrace.errors import EngineBug
from headrace.materializer.identities import IdentityOf
from headrace.materializer.map_layout import KIND, RAW, Head, IdentityQueue, MapLayout, MapParts, RowNode
from headrace.materializer.ordered_multiset import Identity, Row
from headrace.state.backend import HISTORY_PREFIX, StateBackend, Write
from headrace.state.codec import encode


class HistoryRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of a key's history; `row` is JSON text, `inserted_at` the event time (ms)."""

    sequence_number: int
    row: msgspec.Raw
    row_kind: int
    inserted_at: int


class StoredHead(Head, omit_defaults=True):
    """Entry of a map. `by` names the fields that identify its rows: those of the upsert key, none for whole rows."""

    by: tuple[str, ...] = ()


_NUMBER = struct.Struct(">Q")
_END_OF_KEY = b"\x00"  # never occurs in JSON
_LONGEST = 32
_A_MAP = b"{"
_END_OF_LINKS = b"]"

_decode_list = msgspec.json.Decoder(list[HistoryRow]).decode
_decode_head = msgspec.json.Decoder(StoredHead).decode
_decode_links = msgspec.json.Decoder(list[int | None]).decode
_decode_queue = msgspec.json.Decoder(tuple[int, int]).decode


def history_entry(key_json: bytes) -> bytes:
    """Return the backend's entry for a key's history."""
    return HISTORY_PREFIX + key_json


def key_of_history(entry: bytes) -> bytes:
    """Return the key of any entry of a history."""
    key_json, _, _ = entry[len(HISTORY_PREFIX) :].partition(_END_OF_KEY)
    return key_json


def stored_history(rows: Sequence[HistoryRow | tuple[int, msgspec.Raw, int, int]]) -> bytes:
    """Return the backend's value for a list."""
    return encode(rows)


def stored_list(rows: Iterable[Row]) -> bytes:
    """Return the backend's value for a list of plain rows."""
    return encode([(number, msgspec.Raw(raw), kind, inserted_at) for number, raw, kind, inserted_at in rows])


def rows_of(stored: bytes) -> list[Row]:
    """Return the rows of a stored list."""
    return [(row.sequence_number, bytes(row.row), row.row_kind, row.inserted_at) for row in _decode_list(stored)]


def head_of(stored: bytes) -> StoredHead | None:
    """Return the head of a stored map; None if it is a list."""
    return _decode_head(stored) if stored[:1] == _A_MAP else None


class StoredMap:
    """One key's map in a backend, as it was before the task: the source of a `MapLayout`'s nodes."""

    def __init__(self, backend: StateBackend, key_json: bytes, identity_of: IdentityOf) -> None:
        """Take the map of a key; read nothing yet."""
        self._backend = backend
        self._entry = history_entry(key_json) + _END_OF_KEY
        self._short = self._entry + b"i="
        self._identity_of = identity_of
        self._nodes: dict[int, bytes] = {}
        self.rows: dict[int, Row] = {}
        """Rows that were read, as they are stored."""
        self._queues: dict[Identity, IdentityQueue | None] = {}

    def node(self, number: int) -> RowNode:
        """Return a node, which the caller may change. It must exist."""
        (stored,) = self._backend.get_many([self.node_entry(number)])
        return self.admit_node(number, stored)

    def queue(self, identity: Identity) -> IdentityQueue | None:
        """Return the first and last row of an identity; None if it has none."""
        (stored,) = self._backend.get_many([self.queue_entry(identity)])
        return self.admit_queue(identity, stored)

    def has_read(self, number: int) -> bool:
        """Return whether a node was read before: the layout then holds its current state."""
        return number in self.rows

    def node_entry(self, number: int) -> bytes:
        """Return the backend's entry of a node."""
        return self._entry + b"n" + _NUMBER.pack(number)

    def queue_entry(self, identity: Identity) -> bytes:
        """Return the backend's entry of the rows with an identity."""
        text = _text_of(identity)
        return self._short + text if len(text) <= _LONGEST else self._hashed(text)

    def _queue_entries(self, identities: Iterable[Identity]) -> Iterable[bytes]:
        short, hashed = self._short, self._hashed
        return [short + text if len(text) <= _LONGEST else hashed(text) for text in map(_text_of, identities)]

    def _hashed(self, text: bytes) -> bytes:
        return self._entry + b"i#" + blake2b(text, digest_size=16).digest()

    def admit_node(self, number: int, stored: bytes | None) -> RowNode:
        """Decode and store the backend's value of a node. Raises `EngineBug` if it is missing."""
        if stored is None:
            msg = f"node {number} of the history {self._entry!r} is missing"
            raise EngineBug(msg)
        links, _, raw = stored.partition(_END_OF_LINKS)
        kind, inserted_at, *others = _decode_links(links + _END_OF_LINKS)
        self._nodes[number] = stored
        self.rows[number] = (number, raw, kind or 0, inserted_at or 0)
        return [self._identity_of(raw), raw, kind, inserted_at, *others]

    def admit_queue(self, identity: Identity, stored: bytes | None) -> IdentityQueue | None:
        """Decode and store the backend's value of an identity."""
        self._queues[identity] = queue = None if stored is None else _decode_queue(stored)
        return queue

    def whole(self, parts: MapParts) -> Iterable[Write]:
        """Return the writes of a map that the backend does not have."""
        node = self._entry + b"n"
        nodes = map(struct.Struct(f">{len(node)}sQ").pack, repeat(node), parts.numbers)
        values = map(add, map(encode, parts.links), parts.raws)
        queues = map(encode, parts.queues)
        return chain(zip(nodes, values, strict=True), zip(self._queue_entries(parts.identities), queues, strict=True))

    def writes(self, layout: MapLayout) -> Iterable[Write]:
        """Return the writes that change the backend's map to `layout`; nodes that are not in memory did not change."""
        before, nodes, known = self._nodes, layout.nodes, self._queues
        entry, pack = self._entry + b"n", _NUMBER.pack
        written: list[Write] = [(entry + pack(number), None) for number in before if number not in nodes]
        for number, node in nodes.items():
            value = encode(node[KIND:]) + node[RAW]
            if before.get(number) != value:
                written.append((entry + pack(number), value))
        for identity, queue in layout.queues():
            if known.get(identity) != queue:
                written.append((self.queue_entry(identity), None if queue is None else encode(queue)))
        return written

    def removal(self) -> Iterable[Write]:
        """Return writes that remove all entries but the head. All nodes must have been read."""
        for number, (_, raw, _, _) in self.rows.items():
            yield self.node_entry(number), None
            yield self.queue_entry(self._identity_of(raw)), None


def _text_of(identity: Identity) -> bytes:
    return identity if type(identity) is bytes else encode(identity)


def stored_head(head: Head, by: tuple[str, ...]) -> bytes:
    """Return the backend's value for a map's head."""
    return encode(StoredHead(head.size, head.first, head.last, head.oldest, head.newest, by))
