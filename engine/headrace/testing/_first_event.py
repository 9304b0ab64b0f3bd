"""First event times of the files that a harness was fed: its clock never lags behind them, if it starts by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.api import SourceNode
    from headrace.config import JobConfig
    from headrace.testing._memory_topic import MemoryTopic


def last_begin(config: JobConfig, topics: Mapping[str, MemoryTopic], files: Collection[tuple[str, str]]) -> int | None:
    """Return when the last of the files begins: the latest of their first event times, and of the complete intervals (ms); None without one.

    `files` are pairs of a source and a file's name. Partitions of topics, and files of tables, count as well. Files that cannot be read,
    and bad rows, are skipped.
    """
    from headrace.plan.pipelines import plan_of

    begins = [
        times.drop_null()[0].as_py()
        for node in plan_of(config.code).sources
        for times in _parts(
            node, config, topics.get(node.name), [name for source, name in files if source == node.name]
        )
        if times.null_count < len(times)
    ]
    return max(begins, default=None)


def _parts(
    node: SourceNode, config: JobConfig, topic: MemoryTopic | None, names: Collection[str]
) -> Iterator[pa.Int64Array]:
    with suppress(HeadraceError):  # the run will raise it
        if topic is not None:
            yield from _of_messages(node, topic)
        else:
            yield from _of_files(node, config, names)


def _of_files(node: SourceNode, config: JobConfig, names: Collection[str]) -> Iterator[pa.Int64Array]:
    import pyarrow as pa

    from headrace.sources.kinds import source_of
    from headrace.sources.offset import SourceOffset
    from headrace.sources.source import TakenIn

    bound = config.sources[node.name]
    source = source_of(node, bound, config)
    is_table = bound.format == "delta"
    files = source.scan(SourceOffset(), TakenIn()).files if is_table else source.named(names).values()
    for file in files:
        interval = source.interval_of(file.name) if bound.complete_intervals else None
        if interval is not None:
            yield pa.array([interval.start], pa.int64())
        with suppress(HeadraceError):
            yield source.event_times(file)


def _of_messages(node: SourceNode, topic: MemoryTopic) -> Iterator[pa.Int64Array]:
    from headrace.sources.messages import Messages
    from headrace.sources.row_check import RowCheck

    for table in topic.tables():
        yield RowCheck(node, Messages("skip")).times_in_order(table)
