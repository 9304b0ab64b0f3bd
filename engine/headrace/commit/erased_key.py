"""A key that is to be erased: which rows are its own, and which only mention it.

A row is the key's own if its column `key` is. Rows of other keys may hold the key in their text: records that wait, input in
quarantine, values of other operators. Of a key with several fields, only the whole list is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError
from headrace.tables.key_texts import key_texts
from headrace.tables.predicate import OneOf
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, QUARANTINE, STATE_TABLES

WAITING_TABLES = (ASYNC_REQUESTS, BUFFERED_REQUESTS, QUARANTINE)
"""Tables with records as they came, of which a row may be erased since it mentions the key."""

_NO_KEY = "null"
"""Broadcast state has this key, and rows of the quarantine whose record has none: it is nobody's."""

_OUR_WORDS = frozenset({"operator", "state", "domain", "row_kind", "status", "block_id", "source"})
"""Columns of text that hold names, and nothing of a record."""

_NUMBER = r"(^|[^0-9A-Za-z_.+-]){}($|[^0-9A-Za-z_.])"
_WORD = r"(^|[^\pL\pN_]){}($|[^\pL\pN_])"


@dataclass(frozen=True, slots=True)
class ErasedKey:
    """A key as people write it, and how far its erasure goes."""

    key: str
    operator: str | None = None
    """Only rows of this operator; None for all."""

    with_mentions: bool = False
    """Whether rows of `WAITING_TABLES` that mention the key are erased, too."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for no key at all."""
        if not self.texts or not self.key.strip():
            msg = f"{self.key!r} is no key that can be erased: broadcast state, and input whose key is null, belong to nobody"
            raise ConfigError(msg)

    @property
    def texts(self) -> tuple[str, ...]:
        """The JSON texts that the key may be stored as."""
        if self.key.strip() == _NO_KEY:
            return ()
        return tuple(dict.fromkeys(key_texts(self.key)))

    def is_named_in(self, text: str) -> bool:
        """Return whether a text of the user names the key. A number may be anything, and is not looked for."""
        is_text = isinstance(msgspec.json.decode(self.texts[0]), str | list)
        named = self._named_in(pa.chunked_array([[text]]))
        return is_text and bool(named[0].as_py())

    def own(self, rows: pa.Table) -> pa.Array:
        """Return a mask of the key's own rows."""
        return pc.and_(OneOf("key", self.texts).mask(rows), self._of_operator(rows))

    def mentions(self, rows: pa.Table) -> pa.Array:
        """Return a mask of rows of other keys that have the key in their text."""
        names = [column for column in rows.schema.names if column in text_columns(rows.schema)]
        nothing = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
        named = reduce(pc.or_, (self._named_in(rows[name]) for name in names), nothing)
        return pc.and_(pc.and_(named, self._of_operator(rows)), pc.invert(self.own(rows)))

    def traces(self, table: str, rows: pa.Table) -> pa.Array:
        """Return a mask of the rows of a table in which the key must not be left."""
        return pc.or_(self.own(rows), self.mentions(rows)) if self.looks_into(table) else self.own(rows)

    def erased(self, table: str, rows: pa.Table) -> pa.Array:
        """Return a mask of the rows of a table that are erased: whole entries, of which `rows` have all changes.

        Were only the last change of an entry erased, since that one mentions the key, the one before it would be state again.
        """
        if not self.looks_into(table):
            return self.own(rows)
        entry = list(STATE_TABLES[table].entry)
        names = rows.select(entry).to_pylist()
        traces = self.traces(table, rows).to_pylist()
        erased = {tuple(name.values()) for name, is_erased in zip(names, traces, strict=True) if is_erased}
        return pa.array([tuple(name.values()) in erased for name in names], pa.bool_())

    def looks_into(self, table: str) -> bool:
        """Return whether rows of a table are erased for what they mention."""
        return self.with_mentions and table in WAITING_TABLES

    def columns(self, table: str) -> list[str]:
        """Return the columns that `traces` needs."""
        needed = ["operator", "key"]
        return [*needed, *text_columns(STATE_TABLES[table].schema)] if self.looks_into(table) else needed

    def _named_in(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a mask of the texts that have the key as a whole word."""
        pattern = "|".join(form for text in self.texts for form in _patterns(text))
        if not pattern:
            return pa.chunked_array([pa.repeat(pa.scalar(False), len(texts))])
        return pc.fill_null(pc.match_substring_regex(texts, pattern), False)

    def _of_operator(self, rows: pa.Table) -> pa.Array:
        if self.operator is None:
            return pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
        return pc.equal(rows["operator"], self.operator)


def text_columns(schema: pa.Schema) -> Sequence[str]:
    """Return the columns whose text comes from records and keys."""
    return [column.name for column in schema if pa.types.is_string(column.type) and column.name not in _OUR_WORDS]


def _patterns(text: str) -> Iterator[str]:
    """Yield regular expressions for a key's JSON text; a key's own text also as JSON escapes it.

    Truth values, and texts without a letter or digit, are everywhere, and not looked for.
    """
    value = msgspec.json.decode(text)
    if isinstance(value, str):
        forms = {value, text[1:-1]} if any(map(str.isalnum, value)) else ()
        yield from (_WORD.format(_quoted(form)) for form in sorted(forms))
    elif isinstance(value, list):
        yield _quoted(text)
    elif not isinstance(value, bool):
        yield _NUMBER.format(_quoted(text))


def _quoted(text: str) -> str:
    """Return a regular expression for a text itself."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)
