"""Scan of a job's folder for the text of an erased key, in files that no survey of the state tables reads.

The folder is listed as a whole: no log names what a dead attempt, a dropped branch or another release has left there. Parquet files are
read as rows, all others as text. A file that cannot be read counts, since nobody knows what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import threads
from headrace.commit.branches import BRANCHES
from headrace.commit.drop_marker import MARKER
from headrace.commit.erased_key import ErasedKey
from headrace.commit.progress_file import FOLDER as PROGRESS
from headrace.commit.vacuum_intents import INTENTS
from headrace.config import LINES, JobConfig
from headrace.sources.landed import LANDED
from headrace.tables.files import file_system, list_files
from headrace.tables.schemas import ALL_TABLES, CHECKPOINTS
from headrace.tables.store import storage_errors

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
    with storage_errors(f"to list the files in {config.job_folder}"):
        listed = sorted(list_files(config.job_folder, config.storage_options))
    paths = [path for path in listed if (top := path.partition("/")[0]) not in _WITHOUT_RECORDS and is_wanted(top)]
    files: list[FileWithKey] = []
    for at in range(0, len(paths), _AT_ONCE):
        batch = paths[at : at + _AT_ONCE]
        has_key = threads.in_parallel(lambda path: _has_key(config, path, key), batch)
        files += [FileWithKey(path, _mend(config, path)) for path, it_has in zip(batch, has_key, strict=True) if it_has]
    return files


def _has_key(config: JobConfig, path: str, key: ErasedKey) -> bool:
    store, full = file_system(f"{config.job_folder}/{path}", config.storage_options)
    with storage_errors(f"to read {config.job_folder}/{path}"):
        try:
            with store.open_input_file(full) as source:
                if not path.endswith(".parquet"):
                    return key.is_in_text(source.read().decode(errors="replace"))
                parquet = pq.ParquetFile(source)
                groups = (parquet.read_row_group(number, use_threads=False) for number in range(parquet.num_row_groups))
                return any(_rows_have_key(rows, key) for rows in groups)
        except FileNotFoundError:
            return False  # somebody has deleted the file since the folder was listed
        except pa.ArrowInvalid:
            return True  # truncated: an attempt died while it wrote the file


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
        return "'headrace erase' with --apply --purge deletes it"
    if top == LINES and parts:
        return f"'headrace branch drop {config.job} {parts[0]}' removes it"
    if top == LANDED:
        return f"'headrace run {config.job}' takes its messages in; then erase the key again"
    if top in ALL_TABLES:
        return "rows of other keys mention it: 'headrace erase' with --mentions, or of these keys, or the end of the retention"
    return "no command knows this file: delete it yourself"


def notes_with_key(notes: Sequence[tuple[str, str | None]], key: ErasedKey) -> list[str]:
    """Return the names of those notes that name the key: nobody can take them out. `notes` has names and texts."""
    return [name for name, text in notes if text is not None and key.is_named_in(text)]
