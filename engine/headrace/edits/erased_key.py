"""A key to erase, and the files that hold its text.

A key to erase: find rows of the key, and rows of other keys that mention it.

A row is the key's own if its column `key` has it. Rows of other keys may have the key in their text: waiting records, input in
quarantine, values of other operators. For a key with several fields, only text with the whole list counts.

The folder is listed as a whole: no log names what a dead attempt, a dropped branch or another release has left there. Parquet files are
read as rows, all others as text. A file that cannot be read counts, since nobody knows what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import threads
from headrace.config import LINES, JobConfig
from headrace.errors import ConfigError
from headrace.log.branches import BRANCHES
from headrace.log.marks import INTENTS, MARKER
from headrace.log.progress import FOLDER as PROGRESS
from headrace.sources.kafka.landed import LANDED
from headrace.state.codec import key_texts
from headrace.storage.predicate import OneOf
from headrace.storage.refusals import doing
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, ASYNC_REQUESTS, BUFFERED_REQUESTS, CHECKPOINTS, QUARANTINE, RESPONSES

WAITING_TABLES = (ASYNC_REQUESTS, BUFFERED_REQUESTS, QUARANTINE, RESPONSES)
"""Tables that store whole records. An erasure may remove their rows for a mention of the key."""

_NO_KEY = "null"
"""Key of broadcast state, and of rows in quarantine whose record has no key. It belongs to nobody."""

_OUR_WORDS = frozenset({"operator", "state", "domain", "row_kind", "status", "block_id", "source", "service", "digest"})
"""Text columns that hold names only, nothing of a record."""

_NUMBER = r"(^|[^0-9A-Za-z_.+-]){}($|[^0-9A-Za-z_.])"
_WORD = r"(^|[^\pL\pN_]){}($|[^\pL\pN_])"


@dataclass(frozen=True, slots=True)
class ErasedKey:
    """Key as a user writes it, and the scope of its erasure."""

    key: str
    operator: str | None = None
    """Erase only rows of this operator; None for all."""

    with_mentions: bool = False
    """Erase also rows of `WAITING_TABLES` that mention the key."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for the null key."""
        if not self.texts or not self.key.strip():
            msg = f"{self.key!r} cannot be erased: broadcast state, and input whose key is null, belong to nobody"
            raise ConfigError(msg)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the JSON texts that the key may be stored as."""
        if self.key.strip() == _NO_KEY:
            return ()
        return tuple(dict.fromkeys(key_texts(self.key)))

    @property
    def is_number(self) -> bool:
        """Return whether the key is a number, which may mean anything in a text."""
        return not isinstance(msgspec.json.decode(self.texts[0]), str | list)

    def is_named_in(self, text: str) -> bool:
        """Return whether a user's text names the key. Always False for a number."""
        return not self.is_number and self.is_in_text(text)

    def is_in_text(self, text: str) -> bool:
        """Return whether a text has the key, also inside of JSON within JSON, where each level adds backslashes."""
        plain = self.key.replace("\\", "").strip()
        other = ErasedKey(plain) if plain and plain != _NO_KEY else self
        pairs = ((self, text), (other, text.replace("\\", "")))
        return any(key.is_in_texts(pa.chunked_array([[written]])) for key, written in pairs)

    def is_in_texts(self, texts: pa.ChunkedArray) -> bool:
        """Return whether one of the texts has the key."""
        return bool(pc.any(self._named_in(texts)).as_py())

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
        """Return a mask of the rows of a table that must not keep the key."""
        return pc.or_(self.own(rows), self.mentions(rows)) if self.looks_into(table) else self.own(rows)

    def erased(self, table: str, rows: pa.Table) -> pa.Array:
        """Return a mask of the rows of a table to erase: whole entries. `rows` must have all changes of each entry.

        If only the last change of an entry were erased, because it mentions the key, the change before it would become state again.
        """
        if not self.looks_into(table):
            return self.own(rows)
        entry = list(ALL_TABLES[table].entry)
        names = rows.select(entry).to_pylist()
        traces = self.traces(table, rows).to_pylist()
        erased = {tuple(name.values()) for name, is_erased in zip(names, traces, strict=True) if is_erased}
        return pa.array([tuple(name.values()) in erased for name in names], pa.bool_())

    def looks_into(self, table: str) -> bool:
        """Return whether an erasure removes rows of a table that mention the key."""
        return self.with_mentions and table in WAITING_TABLES

    def columns(self, table: str) -> list[str]:
        """Return the columns that `traces` needs."""
        needed = ["operator", "key"]
        return [*needed, *text_columns(ALL_TABLES[table].schema)] if self.looks_into(table) else needed

    def _named_in(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a mask of the texts that have the key as a whole word."""
        forms = (form for text in self.texts for form in _forms(text))
        # A regular expression over letters of all scripts takes 20 ms to compile: a plain search comes first.
        patterns = [form.pattern for form in forms if pc.any(pc.match_substring(texts, form.text)).as_py()]
        if not patterns:
            return pa.chunked_array([pa.repeat(pa.scalar(False), len(texts))])
        return pc.fill_null(pc.match_substring_regex(texts, "|".join(patterns)), False)

    def _of_operator(self, rows: pa.Table) -> pa.Array:
        if self.operator is None:
            return pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
        return pc.equal(rows["operator"], self.operator)


def text_columns(schema: pa.Schema) -> Sequence[str]:
    """Return the columns whose text comes from records and keys."""
    return [column.name for column in schema if pa.types.is_string(column.type) and column.name not in _OUR_WORDS]


class _Form(NamedTuple):
    """Text of a key in a record, and the regular expression that finds it there as a whole word."""

    text: str
    pattern: str


def _forms(text: str) -> Iterator[_Form]:
    """Yield the forms of a key's JSON text; for a text key, both plain and escaped as in JSON.

    Yields nothing for truth values and for texts without a letter or digit: they occur everywhere.
    """
    value = msgspec.json.decode(text)
    if isinstance(value, str):
        forms = {value, text[1:-1]} if any(map(str.isalnum, value)) else ()
        yield from (_Form(form, _WORD.format(_quoted(form))) for form in sorted(forms))
    elif isinstance(value, list):
        yield _Form(text, _quoted(text))
    elif not isinstance(value, bool):
        yield _Form(text, _NUMBER.format(_quoted(text)))


def _quoted(text: str) -> str:
    """Return a regular expression for a text itself."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)


LEFTOVERS: Final = ("transit", "outputs")
"""Folders in which runs keep files until they have published. The files may have records of any key."""

_WITHOUT_RECORDS: Final = frozenset({CHECKPOINTS, BRANCHES, INTENTS, PROGRESS, MARKER})
"""Names in the job's folder of what has ids, names and counts, and nothing of a record."""

_AT_ONCE: Final = 16


class FileWithKey(NamedTuple):
    """File below the job's folder that has the key in its text, and how to remove it."""

    path: str
    mend: str


def other_files(config: JobConfig, key: ErasedKey, surveyed: Collection[str]) -> list[FileWithKey]:
    """Return the files with the key outside of the state tables that a survey has read: `surveyed`.

    Raises `StorageError` when the folder cannot be listed, or a file cannot be read.
    """
    return _with_key(config, key, lambda folder: folder not in surveyed)


def all_files(config: JobConfig, key: ErasedKey) -> list[FileWithKey]:
    """Return all files with the key, also those of state tables in which rows of other keys mention it, and their logs."""
    return _with_key(config, key, lambda _: True)


def _with_key(config: JobConfig, key: ErasedKey, is_wanted: Callable[[str], bool]) -> list[FileWithKey]:
    listed = sorted(JobFolder.of(config).files())
    paths = [path for path in listed if (top := path.partition("/")[0]) not in _WITHOUT_RECORDS and is_wanted(top)]
    files: list[FileWithKey] = []
    for at in range(0, len(paths), _AT_ONCE):
        batch = paths[at : at + _AT_ONCE]
        has_key = threads.in_parallel(lambda path: _has_key(config, path, key), batch)
        files += [FileWithKey(path, _mend(config, path)) for path, it_has in zip(batch, has_key, strict=True) if it_has]
    return files


def _has_key(config: JobConfig, path: str, key: ErasedKey) -> bool:
    folder = JobFolder.of(config)
    with doing(f"to read {folder.within(path)}"):
        try:
            with folder.open(path) as source:
                if path.endswith(".arrows"):
                    return _stream_has_key(source.read_buffer(), key)
                if not path.endswith(".parquet"):
                    return key.is_in_text(source.read().decode(errors="replace"))
                parquet = pq.ParquetFile(source)
                groups = (parquet.read_row_group(number, use_threads=False) for number in range(parquet.num_row_groups))
                return any(_rows_have_key(rows, key) for rows in groups)
        except FileNotFoundError:
            return False  # somebody has deleted the file since the folder was listed
        except pa.ArrowInvalid:
            return True  # truncated: an attempt died while it wrote the file


def _stream_has_key(content: pa.Buffer, key: ErasedKey) -> bool:
    """Return whether rows in transit have a key. Of a stream that is cut off it is not known, so they may."""
    try:
        with pa.ipc.open_stream(content) as stream:
            return any(_rows_have_key(pa.Table.from_batches([batch]), key) for batch in stream)
    except (pa.ArrowInvalid, OSError):
        return True


def _rows_have_key(rows: pa.Table, key: ErasedKey) -> bool:
    return any(key.is_in_texts(texts) for column in rows.columns for texts in _texts(column))


def _texts(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yield the values of a column, and of all columns within it, as texts."""
    kind = column.type
    if pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _texts(field)
    elif pa.types.is_map(kind):
        for part in (pa.chunked_array([chunk.keys for chunk in column.chunks], kind.key_type), _items(column)):
            yield from _texts(part)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts(pc.list_flatten(column))
    else:
        yield pc.cast(column, options=pc.CastOptions(pa.string(), allow_invalid_utf8=True))


def _items(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.items for chunk in column.chunks], column.type.item_type)


def _mend(config: JobConfig, path: str) -> str:
    """Return a clause on how a file goes that has the key."""
    top, *parts = path.split("/")
    if top in LEFTOVERS:
        return f"'headrace erase {config.job} KEY --apply --purge --why ...' deletes it"
    if top == LINES and parts:
        return f"'headrace branch drop {config.job} {parts[0]}' removes it"
    if top == LANDED:
        return f"'headrace run {config.job}' takes its messages in; then erase the key again"
    if top in ALL_TABLES:
        return f"rows of other keys mention it: 'headrace erase {config.job} KEY' with --mentions, or of these keys, or the end of the retention"
    return "no command knows this file: delete it yourself"


def notes_with_key(notes: Sequence[tuple[str, str | None]], key: ErasedKey) -> list[str]:
    """Return the names of those notes that name the key: nobody can take them out. `notes` has names and texts."""
    return [name for name, text in notes if text is not None and key.is_named_in(text)]
