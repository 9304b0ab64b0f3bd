"""Graph of a job's lines: its own checkpoints and those of its branches, each linked to its predecessor.

job       0 --- 1 --- 2 --- 3 --- 4 (restore to 1) --- 5
                      |
branch                3 fork --- 4
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from headrace.config import JobConfig
from headrace.log.branches import Branches
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder


class CheckpointName(NamedTuple):
    """Name of a checkpoint: its line (None: the job's own), and its id there."""

    line: str | None
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class LineNode:
    """Checkpoint of one of the lines."""

    name: CheckpointName
    checkpoint: Checkpoint
    before: CheckpointName | None
    """Predecessor; None for the first checkpoint of the job."""
    on_line: bool
    """True if it led to the present state of its line: no restore has left it behind."""


@dataclass(frozen=True, slots=True)
class LineGraph:
    """Checkpoints of all lines of a job, newest first: each comes before its predecessor."""

    nodes: list[LineNode]
    head: CheckpointName | None
    """Last checkpoint of the requested line."""

    @property
    def has_forks(self) -> bool:
        """Return whether the job has a branch or a restore."""
        return not all(node.name.line is None and node.on_line for node in self.nodes)


def line_graph(config: JobConfig) -> LineGraph:
    """Return the lines of a job and of all its branches; for a branch, its own and the job's.

    Raises `StorageError` when a log cannot be read.
    """
    job = config.itself
    names = [branch.name for branch in Branches(job).open if config.branch in {None, branch.name}]
    own = _log(job)
    keyed = [*_keyed(None, own, {})]
    keys = {node.name.checkpoint_id: key for key, node in keyed}
    logs = {name: _log(job.on_branch(name)) for name in names}
    for name, log in logs.items():
        keyed += _keyed(name, log, keys)
    nodes = [node for _, node in sorted(keyed, key=lambda item: item[0], reverse=True)]
    last = (own if config.branch is None else logs[config.branch]).last
    return LineGraph(nodes, None if last is None else CheckpointName(config.branch, last.checkpoint_id))


_Key = tuple[int, bool, int]


def _keyed(line: str | None, log: CheckpointLog, origins: dict[int, _Key]) -> Iterator[tuple[_Key, LineNode]]:
    """Yield the checkpoints of a line, oldest first, each with a key that sorts the checkpoints of all lines.

    The key begins with the time of the commit. If clocks disagree, a checkpoint still sorts after lower ids and after its fork.
    """
    checkpoints = [checkpoint for checkpoint in log.checkpoints if line is None or checkpoint.has_state]
    led_here = {checkpoint.checkpoint_id for checkpoint in log.lineage.newest_first()}
    fork = next((checkpoint.restored_from for checkpoint in checkpoints if checkpoint.kind is Kind.FORK), None)
    earliest = origins[fork][0] if fork in origins else 0
    times = accumulate((checkpoint.committed_at for checkpoint in checkpoints), max, initial=earliest)
    for checkpoint, time in zip(checkpoints, [*times][1:], strict=True):
        number = checkpoint.checkpoint_id
        node = LineNode(CheckpointName(line, number), checkpoint, _before(line, log, checkpoint), number in led_here)
        yield (time, line is not None, number), node


def _before(line: str | None, log: CheckpointLog, checkpoint: Checkpoint) -> CheckpointName | None:
    if checkpoint.kind is Kind.FORK and checkpoint.restored_from is not None:
        return CheckpointName(None, checkpoint.restored_from)
    before = log.lineage.before(checkpoint)
    return None if before is None else CheckpointName(line, before.checkpoint_id)


def _log(config: JobConfig) -> CheckpointLog:
    return CheckpointLog(JobFolder.of(config))
