"""Data files of a table, compared with its log: their sizes, their footers, and on request all their rows.

A table's log has the size of each file, and the number of its rows. A file that is gone or cut off has another size. One that was
overwritten with as many other bytes has no footer any more, or one of another number of rows. Damage between both ends of a file shows
only when its rows are read. Times of change say nothing: a copy brought back from a backup has another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from headrace.errors import StorageError
from headrace.storage.damage import FileDamage, blames_content, named_damage
from headrace.storage.files import Files
from headrace.storage.overlay import is_elsewhere, resolved
from headrace.storage.refusals import DamagedError
from headrace.storage.schemes import Options
from headrace.storage.table import Snapshot
from headrace.threads import in_parallel

_AT_ONCE: Final = 16
"""Files of an object store that are asked for at once."""


class LoggedFile(NamedTuple):
    """Data file as the log of its table has it: its size, and the number of its rows; None if its writer has not counted them."""

    size: int
    rows: int | None


def logged_files(table: Snapshot) -> dict[str, LoggedFile]:
    """Return the data files of a table by path relative to the table's folder."""
    actions = table.add_actions()
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return {unquote(path): LoggedFile(size, rows) for path, size, rows in zip(*columns, strict=True)}


def location_of(table: str, file: str) -> str:
    """Return the location of a table's data file. Files of a branch's base are elsewhere."""
    return file if is_elsewhere(file) and not file.startswith("../") else resolved(f"{table}/{file}")


def present_sizes(storage: Files, locations: Mapping[str, LoggedFile]) -> dict[str, int | None]:
    """Return the sizes of some files, by location; None for those that are gone. An object store takes a request for each."""
    folders: dict[str, list[str]] = {}
    for location in locations:
        folder, _, name = location.rpartition("/")
        folders.setdefault(folder, []).append(name)
    return {
        f"{folder}/{name}": size
        for folder, names in folders.items()
        for name, size in Files(folder, storage.options).sizes_of(names).items()
    }


def missized_files(files: Mapping[str, LoggedFile], present: Mapping[str, int | None]) -> list[FileDamage]:
    """Return the files, given by location, that are gone or cut off; `present` has the sizes of those that are there."""
    return [
        FileDamage(location, present.get(location), file.size)
        for location, file in sorted(files.items())
        if present.get(location) != file.size
    ]


def damaged_files(
    storage: Files, files: Mapping[str, LoggedFile], present: Mapping[str, int | None], *, reads_rows: bool = False
) -> list[FileDamage]:
    """Return the files, given by location, that are gone, cut off or overwritten; see `missized_files` and `unreadable_files`."""
    missized = missized_files(files, present)
    others = files.keys() - {fault.uri for fault in missized}
    return sorted(
        [*missized, *unreadable_files(storage, {name: files[name] for name in others}, reads_rows=reads_rows)]
    )


def unreadable_files(storage: Files, files: Mapping[str, LoggedFile], *, reads_rows: bool = False) -> list[FileDamage]:
    """Return the files, given by location, whose content is not what their table's log says; those that are gone count.

    Reads the footer of each, and with `reads_rows` all rows.
    """

    def fault_of(location: str) -> FileDamage | None:
        return _fault(Files(location, storage.options), files[location], reads_rows=reads_rows)

    if storage.is_on_local_disk:
        faults = [fault_of(location) for location in sorted(files)]
    else:
        names = sorted(files)
        parts = (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
        faults = [fault for part in parts for fault in in_parallel(fault_of, part)]
    return [fault for fault in faults if fault is not None]


@contextmanager
def naming_damage(table: Snapshot, storage: Options) -> Iterator[None]:
    """Name the damaged file in an error of reading a table: readers of Parquet do not always say which one they mean.

    Raises `DamagedError` for it.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if not blames_content(error) or named_damage(error) is not None:
            raise
        files = {location_of(table.uri, path): file for path, file in logged_files(table).items()}
        with suppress(StorageError):  # the storage refuses: then the first error says more
            for location in sorted(files):
                if wrong := unreadable_files(Files(table.uri, storage), {location: files[location]}, reads_rows=True):
                    raise DamagedError(wrong[0]) from error
        raise


def _fault(file: Files, logged: LoggedFile, *, reads_rows: bool) -> FileDamage | None:
    try:
        rows = file.parquet_rows()
        is_whole = rows is not None and logged.rows in {None, rows} and (not reads_rows or file.has_whole_rows())
    except StorageError as error:
        if error.is_missing:
            return FileDamage(file.uri, None, logged.size)
        raise
    return None if is_whole else FileDamage(file.uri, logged.size, logged.size)
