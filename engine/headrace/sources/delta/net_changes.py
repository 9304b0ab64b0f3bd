"""Net changes of a version of a Delta table that has no files of changes: rows that it removed, and rows that it added.

UPDATE, MERGE and DELETE write whole files anew, so most of the removed rows come back in the added files. A row that is in both
has not changed: it cancels out. The comparison reads one column of all these files at a time, and compares values as the table's type has
them: writers store times, maps and the fields of structs in different ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.sources.delta.mapping import in_table_type
from headrace.sources.delta.rows import DeltaRows, read_rows, row_count
from headrace.sources.position import Ranges
from headrace.storage.delta_schema import DeltaColumn
from headrace.storage.storage import Storage

Numbers = npt.NDArray[np.int64]


class ChangedFile(NamedTuple):
    """File with removed rows, or with added ones: its place, the facts of its rows, and the table's columns before or after the change."""

    place: Storage
    rows: DeltaRows
    columns: tuple[DeltaColumn, ...]


def net_changes(
    removed: Sequence[ChangedFile], added: Sequence[ChangedFile]
) -> tuple[list[DeltaRows], list[DeltaRows]]:
    """Return the facts of removed and of added rows, without rows that are in both. Raises one of `UNREADABLE`."""
    minus, plus = [_counting(file) for file in removed], [_counting(file) for file in added]
    both = [*minus, *plus]
    sizes = np.array([row_count(file.place, file.rows) for file in both], np.int64)
    sides = np.repeat(np.repeat([0, 1], [len(minus), len(plus)]), sizes)
    stays = ~_cancelled(_identities(both, int(sizes.sum())), sides) if 0 < sides.sum() < len(sides) else sides >= 0
    parts = np.split(stays, np.cumsum(sizes)[:-1])
    facts = [_with_rows(file.rows, kept) for file, kept in zip(both, parts, strict=True)]
    return facts[: len(minus)], facts[len(minus) :]


def _counting(file: ChangedFile) -> ChangedFile:
    """Return a file with its rows by number, so that its deletion vectors are read once."""
    if file.rows.vector is None and file.rows.only is None:
        return file
    rows = file.rows.live_rows(file.place)
    facts = msgspec.structs.replace(file.rows, vector=None, only=None, table="", net=_ranges(rows))
    return file._replace(rows=facts)


def _with_rows(facts: DeltaRows, kept: npt.NDArray[np.bool_]) -> DeltaRows:
    if kept.all():
        return facts
    rows = np.flatnonzero(kept) if facts.net is None else _numbers(facts.net)[kept]
    return msgspec.structs.replace(facts, net=_ranges(rows))


def _ranges(rows: Numbers) -> Ranges:
    """Return ascending numbers as ranges."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
    return tuple((int(run[0]), int(run[-1]) + 1) for run in runs)


def _numbers(ranges: Ranges) -> Numbers:
    return np.concatenate([np.arange(first, end) for first, end in ranges] or [np.empty(0, np.int64)])


def _identities(files: Sequence[ChangedFile], rows: int) -> Numbers:
    """Return a number for each row of the files, in order: equal rows have equal numbers."""
    identities: Numbers = np.zeros(rows, np.int64)
    for name in dict.fromkeys(column.name for file in files for column in file.columns):
        values = [_values(file, name) for file in files]
        codes = _codes(values)
        together = identities * (int(codes.max()) + 1) + codes
        identities = np.unique(together, return_inverse=True)[1].astype(np.int64)
    return identities


def _values(file: ChangedFile, name: str) -> pa.ChunkedArray:
    """Return the values of a column, null where the file's version of the table does not have it."""
    column = next((column for column in file.columns if column.name == name), None)
    if column is None:
        return pa.chunked_array([pa.nulls(row_count(file.place, file.rows))])
    return in_table_type(read_rows(file.place, file.rows, [name])[name], column)


def _codes(parts: Sequence[pa.ChunkedArray]) -> Numbers:
    """Return a number for each value: equal values have equal numbers, also null and NaN."""
    encoded: Any = _together(parts).combine_chunks().dictionary_encode(null_encoding="encode")
    codes: Numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _together(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return values as one column; as texts where no type holds all of them, or values have parts."""
    parts = [part.cast(part.type.value_type) if pa.types.is_dictionary(part.type) else part for part in parts]
    try:
        tables = [pa.table({"value": part}) for part in parts]
        values = pa.concat_tables(tables, promote_options="permissive")["value"]
    except pa.ArrowException:
        values = None
    if values is None or pa.types.is_nested(values.type):
        return pa.chunked_array([_texts(part) for part in parts], pa.large_string())
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return values.cast(wide.get(values.type, values.type))


def _texts(part: pa.ChunkedArray) -> pa.Array:
    try:
        return pa.array([repr(_ordered(value)) for value in part.to_pylist()], pa.large_string())
    except (OverflowError, ValueError) as error:
        msg = f"values that Python does not have: {error}"
        raise pa.ArrowInvalid(msg) from error


def _ordered(value: Any) -> Any:
    """Return a value whose fields, and pairs of a map, are in one order."""
    if isinstance(value, dict):
        return sorted((name, _ordered(part)) for name, part in value.items())
    if isinstance(value, list):
        parts = [_ordered(part) for part in value]
        return sorted(parts, key=repr) if parts and isinstance(value[0], tuple) else parts
    return tuple(map(_ordered, value)) if isinstance(value, tuple) else value


def _cancelled(identities: Numbers, sides: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is one of those that are removed and added. The first ones of each side are."""
    counts = np.zeros((2, int(identities.max()) + 1), np.int64)
    np.add.at(counts, (sides, identities), 1)
    in_both = counts.min(axis=0)
    cancelled = np.zeros(len(sides), bool)
    for side in (0, 1):
        places = np.flatnonzero(sides == side)
        order = places[np.argsort(identities[places], kind="stable")]
        sorted_ones = identities[order]
        first = np.cumsum(counts[side]) - counts[side]
        cancelled[order] = np.arange(len(order)) - first[sorted_ones] < in_both[sorted_ones]
    return cancelled
