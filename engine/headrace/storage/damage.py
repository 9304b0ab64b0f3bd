"""Damage of tables: data files that are gone or cut off, and entries of a log that are cut off.

Errors of Delta and Arrow name a file somewhere inside of their text, and do not say how large it should be.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
from pyarrow import fs

from headrace.names import counted
from headrace.storage.schemes import Options, file_system

_LOG: Final = "_delta_log"
_NAMED: Final = re.compile(r"(?:for file|at location) (\S+?\.parquet)")
_LOCAL: Final = re.compile(r"(?<![\w/:.])/[^\s'\":;,]+")
_CHECKED: Final = 12
"""Last entries of a log that are looked at: those behind a log checkpoint, and some more."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES: Final = re.compile(r"(?:\n\s+(?:\d+: |at ).*)+")
_STEPS: Final = re.compile(r"\s*\n\s*\u21b3\s*")


def plain(text: str) -> str:
    """Return a message of a library on one line for each cause: without colours and stack traces."""
    return _STEPS.sub(": ", _FRAMES.sub("", _COLOURS.sub("", text))).rstrip()


_FILE_NAMES: Final = re.compile(r"\S+\.parquet\S*")
_OF_A_STORE: Final = re.compile(r"Error performing|timed out|Object at location", re.IGNORECASE)


def blames_content(error: BaseException | str) -> bool:
    """Return whether an error of reading blames the content of a Parquet file, and not the storage that has it."""
    text = str(error)
    return _OF_A_STORE.search(text) is None and "arquet" in _FILE_NAMES.sub("", text)


class FileDamage(NamedTuple):
    """Data file that is not as the log of its table says: its location, its size (None: it is gone) and the one in the log."""

    uri: str
    size: int | None
    expected: int | None

    def __str__(self) -> str:
        """Return the fault as a clause."""
        if self.size is None:
            return f"file {self.uri} is gone"
        if self.expected is None or self.expected == self.size:
            return f"file {self.uri} is damaged ({counted(self.size, 'byte')})"
        return f"file {self.uri} has {self.size:,} of {counted(self.expected, 'byte')}"


def named_damage(error: BaseException | str) -> FileDamage | None:
    """Return the fault of the data file that an error of reading names; None where it names none, or one of an object store."""
    match = _NAMED.search(str(error))
    path = None if match is None else Path("/", match[1])
    folder = None if path is None else next((up for up in path.parents if (up / _LOG).is_dir()), None)
    if path is None or folder is None:
        return None
    size = path.stat().st_size if path.is_file() else None
    return FileDamage(str(path), size, _logged_size(folder, path))


def file_in_the_way(text: str) -> Path | None:
    """Return a file at or above a path in an error's text, where a folder should be; None if there is none."""
    above = (up for path in _LOCAL.findall(text) for up in (Path(path), *Path(path).parents))
    with suppress(OSError):  # such as a name that is too long
        return next((up for up in above if up.is_file()), None)
    return None


def way_on(file: str) -> str:
    """Return what to do about a damaged file of a table, given its location."""
    table = next((up for up in Path(file).parents if (up / _LOG).is_dir()), Path(file).parent)
    if not (table.parent / "checkpoints" / _LOG).is_dir():
        return "Nothing was written to that table. Bring the file back, or the whole table from a backup that has what was last written to it."
    return (
        f"Nothing was committed. Bring the file back, or the whole job folder {table.parent} from a backup that is not older than the "
        f"job's sinks. 'headrace verify {table.parent.name}' lists all damaged files (with --full, also those with damaged rows)."
    )


def _logged_size(folder: Path, path: Path) -> int | None:
    """Return the size of a data file that the latest version of its table has; None if it has not, or its commit is gone."""
    name = str(path.relative_to(folder))
    for entry in sorted((folder / _LOG).glob("*.json"), reverse=True):
        for action in actions_of(entry.read_bytes()):
            if any(unquote(action.get(kind, {}).get("path", "")) == name for kind in ("add", "remove")):
                size: int | None = action.get("add", {}).get("size")
                return size
    return None


def actions_of(commit: bytes) -> list[dict[str, Any]]:
    """Return the actions of a commit; none if it is cut off or overwritten."""
    try:
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in commit.splitlines() if line]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def torn_commit(uri: str, storage: Options) -> FileDamage | None:
    """Return the newest commit in a table's log that is cut off, or overwritten; None if there is none."""
    store, root = file_system(uri, storage)
    files = store.get_file_info(fs.FileSelector(f"{root}/{_LOG}", allow_not_found=True))
    commits = sorted((file for file in files if file.base_name.endswith(".json")), key=lambda file: file.base_name)
    for file in reversed(commits[-_CHECKED:]):
        with store.open_input_stream(file.path) as stream:
            if not actions_of(stream.read()):
                return FileDamage(f"{uri}/{_LOG}/{file.base_name}", file.size, None)
    return None
