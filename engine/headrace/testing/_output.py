"""Output and clock of a harness.

The output has records, side outputs, watermarks and late records, in order. A clock that starts by itself never lags
behind the first event times of the files that the harness was fed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import clock
from headrace.errors import HeadraceError
from headrace.execution.element import Emitted
from headrace.execution.keyed_process import KeyedProcess
from headrace.testing._clocks import OperatorClock

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.api.graph import SourceNode
    from headrace.config import JobConfig
    from headrace.testing._memory_topic import MemoryTopic


class Watermark(msgspec.Struct, frozen=True):
    """A watermark that was emitted: all records before it, and the timers that it fired, are done."""

    timestamp: int


class LateRecord(msgspec.Struct, frozen=True):
    """A record that arrived at or behind the watermark; it was processed like any other."""

    record: Any


class SideRecord(msgspec.Struct, frozen=True):
    """A record that went to a side output."""

    name: str
    record: Any


class HarnessOutput:
    """Output of a keyed harness that `take` has not returned yet.

    `in_order`: outputs collected together are returned in arrival order; otherwise in the order of emission.
    """

    def __init__(self, side_outputs: Iterable[str], *, in_order: bool) -> None:
        """Start empty."""
        self._side_outputs = tuple(side_outputs)
        self._in_order = in_order
        self._shown: list[Any] = []
        self._collected: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """Collect from a new process, which has emitted nothing yet."""
        self._collected = dict.fromkeys(("", *self._side_outputs), 0)

    def add(self, event: Watermark | LateRecord) -> None:
        """Add an event that no process emits."""
        self._shown.append(event)

    def collect(self, process: KeyedProcess) -> None:
        """Collect the outputs of `process` since the last call."""
        new = [(emitted.order, emitted.record) for emitted in self._new("", process.emitted)]
        for name in self._side_outputs:
            side_records = self._new(name, process.side_outputs[name])
            new += [(emitted.order, SideRecord(name, emitted.record)) for emitted in side_records]
        if self._in_order:
            new.sort(key=itemgetter(0))
        self._shown += [record for _, record in new]

    def take(self) -> list[Any]:
        """Return what was collected since the last call."""
        shown, self._shown = self._shown, []
        return shown

    def _new(self, name: str, emitted: Sequence[Emitted]) -> Sequence[Emitted]:
        new = emitted[self._collected[name] :]
        self._collected[name] = len(emitted)
        return new


class HarnessClock(OperatorClock):
    """A clock that calls its harness when time advances."""

    def __init__(self, advanced: Callable[[int], None]) -> None:
        """Start at 0. `advanced` is called with the new time (ms)."""
        super().__init__()
        self._advanced = advanced
        self.use()

    def use(self) -> None:
        """Install this clock as the active one: of several harnesses, the one in use has its clock installed."""
        before = clock.use(self)
        self.replaced: clock.Clock = before.replaced if isinstance(before, HarnessClock) else before

    def start_at(self, now: int) -> None:
        """Set another start time (ms), without firing timers."""
        super().follow(now - self.now())
        self.has_moved()

    def follow(self, milliseconds: int) -> None:
        """Advance time (ms); timers of processing time that are due then fire."""
        super().follow(milliseconds)
        self._advanced(self.now())


def last_begin(config: JobConfig, topics: Mapping[str, MemoryTopic], files: Collection[tuple[str, str]]) -> int | None:
    """Return when the last of the files begins: the latest of their first event times, and of the complete intervals (ms); None without one.

    `files` are pairs of a source and a file's name. Partitions of topics, and files of tables, count as well. Files that cannot be read,
    and bad rows, are skipped.
    """
    from headrace.plan.loader import plan_of

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
            yield from _of_messages(node, config, topic)
        else:
            yield from _of_files(node, config, names)


def _of_files(node: SourceNode, config: JobConfig, names: Collection[str]) -> Iterator[pa.Int64Array]:
    import pyarrow as pa

    from headrace.sources.position import NO_FACTS
    from headrace.sources.registry import source_of
    from headrace.sources.source import Want

    bound = config.sources[node.name]
    source = source_of(node, config)
    files = source.find(names).values() if bound.kind.is_folder else source.plan(NO_FACTS, Want()).files
    for file in files:
        interval = source.interval_of(file.name) if bound.complete_intervals else None
        if interval is not None:
            yield pa.array([interval.start], pa.int64())
        with suppress(HeadraceError):
            yield source.event_times(file)


def _of_messages(node: SourceNode, config: JobConfig, topic: MemoryTopic) -> Iterator[pa.Int64Array]:
    from headrace.sources.kafka.source import KafkaSource
    from headrace.sources.row_check import RowCheck

    source = KafkaSource.of(node, config)
    for table in topic.tables():
        yield RowCheck(node, source.reader(table)).times_in_order(table)
