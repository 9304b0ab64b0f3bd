"""Small files of a sink's table, and their rewriting into larger ones (Delta's OPTIMIZE)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.sinks.kinds import sink_of
from headrace.tables.store import TableMissingError, VersionTakenError, storage_errors


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Files that a compaction of a sink would rewrite: small ones, in partitions with at least two of them.

    `files` and `size` (bytes) count the whole table, `small_files` and `small_size` the files to rewrite. In a clustered sink,
    a compaction rewrites all files if it rewrites any.
    """

    sink: str
    files: int
    size: int
    small_files: int
    small_size: int

    @property
    def is_due(self) -> bool:
        """Return whether there are files to rewrite."""
        return self.small_files > 0


def find_small_files(config: JobConfig, target_size: int) -> list[SmallFiles]:
    """Return the small files of each existing sink whose files may be rewritten. Reads only logs.

    Raises `StorageError` when a sink's log cannot be read.
    """
    names = [name for name in sorted(config.sinks) if config.sinks[name].format != "parquet"]
    return [files for name in names if (files := _of_sink(config, name, target_size)) is not None]


def left_alone(config: JobConfig) -> list[str]:
    """Return a sentence for each sink whose files are never rewritten."""
    return [
        f"sink '{name}' at {sink.path} is left alone: readers of a folder of Parquet files know the files by name, and would take "
        "rewritten files for new rows."
        for name, sink in sorted(config.sinks.items())
        if sink.format == "parquet"
    ]


def _of_sink(config: JobConfig, name: str, target_size: int) -> SmallFiles | None:
    sink = sink_of(config, name)
    with storage_errors(f"to list the files of sink '{name}' at {sink.uri}"):
        try:
            actions = sink.latest().add_actions()
        except TableMissingError:
            return None
    partitions = [column for column in actions.schema.names if column.startswith("partition.")]
    small: dict[tuple[object, ...], list[int]] = defaultdict(list)
    sizes: Sequence[int] = actions["size_bytes"].to_pylist()
    for size, *values in zip(sizes, *(actions[column].to_pylist() for column in partitions), strict=True):
        if size < target_size:
            small[tuple(values)].append(size)
    rewritten = [size for group in small.values() if len(group) > 1 for size in group]
    return SmallFiles(name, len(sizes), sum(sizes), len(rewritten), sum(rewritten))


def rewrite_small_files(config: JobConfig, name: str, target_size: int) -> int | None:
    """Rewrite the small files of a sink in one commit that changes no row; return the new version, None without small files.

    The commit has no checkpoint and no transaction, so the job's position in the sink stays. The caller holds the job's lease,
    so no run publishes meanwhile. Raises `StorageError` when another program writes to the sink meanwhile: then the sink is
    not changed.
    """
    sink, columns = sink_of(config, name), config.sinks[name].cluster_by
    try:
        with storage_errors(f"to compact sink '{name}' at {sink.uri}"):
            before = sink.latest().version
            after = sink.store.optimize(before, target_size, columns)
    except TableMissingError:
        return None
    except VersionTakenError as error:
        msg = (
            f"sink '{name}' at {sink.uri} was not compacted, since somebody else wrote to it meanwhile: {error}. Nothing "
            "was rewritten: compact again when the other writer is done."
        )
        raise StorageError(msg) from error
    return after if after > before else None
