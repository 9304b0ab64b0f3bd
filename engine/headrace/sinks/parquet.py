"""Folder of Parquet files as a sink, for readers that cannot read Delta.

The sink is a Delta table in the subfolder `_headrace`, which readers of Parquet folders ignore. The folder around it shows the
files of the table's latest version:

    PATH/_headrace/_delta_log/              the table's log, with the published checkpoint and its incarnation
    PATH/_headrace/0000000007-....parquet   a data file, staged by a task and added by the commit
    PATH/day=mon/0000000007-....parquet     the same file, shown: a hard link on a local disk, a copy on an object store

A publication commits to the table, then shows its files. Showing is idempotent, so a process that finds the checkpoint
published shows it again. A restore removes files from the folder, but not from the table, so a second restore shows them again.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyarrow import fs

from headrace import clock, crash_points
from headrace.config import FOLDER_TABLE
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.layout import folder_name
from headrace.sinks.sink import Deliveries, FolderDifferences, TableFile
from headrace.storage.files import path_of
from headrace.storage.schemes import is_on_local_disk, make_folder, sync_path
from headrace.storage.table import Snapshot

_STAGED_NAME: Final = re.compile(r"\d{10}-.+-[0-9a-f]{12}\.parquet")
"""Names of files that tasks stage."""


class ParquetFolderSink(DeltaTableSink):
    """Sink that is a folder of Parquet files. `store` is the table in `_headrace`."""

    @property
    def uri(self) -> str:
        """Location of the folder."""
        return self.store.uri.removesuffix(f"/{FOLDER_TABLE}")

    def _problem_of_new(self) -> str | None:
        """Return why a missing table must not be created: also where its folder has files."""
        files = sorted(self._listed()[0])
        if not files:
            return super()._problem_of_new()
        return (
            f"sink '{self.name}' at {self.uri} has files ({len(files):,}, such as {files[0]}), and no table in {FOLDER_TABLE} that "
            "records which checkpoint published them: readers would take their rows for rows of this job. Nothing was written: bring "
            f"{FOLDER_TABLE} back, move the files away, or give the sink another path."
        )

    def deliver(self, deliveries: Deliveries) -> None:
        """Make the folder show the files of the latest version, even if another publisher commits meanwhile.

        Raises `TableMissingError` when the table is gone, and `OSError` when a file is damaged or the storage refuses.
        """
        del deliveries
        placed: set[str] = set()
        while True:
            differences = self._differences(self.latest())
            if not differences.missing and not differences.surplus:
                break
            for number, (place, file) in enumerate(differences.missing.items()):
                if number == 1:
                    crash_points.reached("deliver.half")
                self._put(file, place)
                placed.add(place)
            self.place.delete(differences.surplus)
            if is_on_local_disk(self.uri):
                for parent in {Path(self.uri, place).parent for place in differences.surplus}:
                    sync_path(parent)
        self.place.sync(placed & differences.shown)

    def differences(self) -> FolderDifferences:
        """Return the differences between the folder and the latest version of its table."""
        return self._differences(self.latest())

    def _differences(self, table: Snapshot) -> FolderDifferences:
        shown, known = self._listed()
        actions = table.add_actions().to_pylist()
        wanted = {_place(action): TableFile(unquote(action["path"]), action["size_bytes"]) for action in actions}
        missing = {place: file for place, file in wanted.items() if shown.get(place) != file.size}
        surplus = [
            place
            for place in sorted(shown.keys() - wanted.keys())
            if place.rpartition("/")[2] in known or _STAGED_NAME.fullmatch(place.rpartition("/")[2])
        ]
        return FolderDifferences({*shown}, missing, surplus)

    def _listed(self) -> tuple[dict[str, int], set[str]]:
        """Return the sizes of the files that readers see, by path; and the names of all files of the table."""
        store, root = self.place.file_system()
        shown: dict[str, int] = {}
        known: set[str] = set()
        for file in store.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
            path = path_of(file)
            if not file.is_file or path is None:
                continue
            place = path.removeprefix(f"{root}/")
            if place.startswith(f"{FOLDER_TABLE}/"):
                known.add(place.rpartition("/")[2])
            elif not any(part[0] in "._" for part in place.split("/")):
                shown[place] = file.size
        return shown, known

    def _put(self, file: TableFile, place: str) -> None:
        """Show a file of the table atomically, replacing an existing one. Raises `OSError` when it is gone or damaged."""
        store, root = self.place.file_system()
        path = f"{root}/{FOLDER_TABLE}/{file.path}"
        info = store.get_file_info(path)
        if info.size != file.size:
            msg = f"{path} {'is gone' if info.size is None else f'has {info.size:,} of {file.size:,} bytes'}"
            raise OSError(msg)
        if not is_on_local_disk(self.uri):
            store.copy_file(path, f"{root}/{place}")
            return
        target = Path(self.uri, place)
        temporary = Path(self.uri, FOLDER_TABLE, f".{clock.unique_id()}.half")
        make_folder(str(target.parent))
        try:
            _link_or_copy(Path(path), temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)  # a rename onto a link to the same file leaves both names


def _link_or_copy(source: Path, target: Path) -> None:
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)  # some file systems have no hard links
    sync_path(target)


def _place(action: dict[str, object]) -> str:
    """Return the path of a file in the folder, below the folders of its partitions (in Hive's form)."""
    prefix = "partition."
    folders = [
        folder_name(column.removeprefix(prefix), value) for column, value in action.items() if column.startswith(prefix)
    ]
    return "/".join([*folders, unquote(str(action["path"])).rpartition("/")[2]])
