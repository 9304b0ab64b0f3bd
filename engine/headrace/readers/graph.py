"""Graph of a job's lineages: its own checkpoints and those of its branches, each linked to its predecessor.

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
    """Name of a checkpoint: its lineage (None: the job's own), and its id there."""

    lineage: str | None
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class LineageNode:
    """Checkpoint of one of the lineages."""

    name: CheckpointName
    checkpoint: Checkpoint
    before: CheckpointName | None
    """Predecessor; None for the first checkpoint of the job."""
    on_line: bool
    """True if it led to the present state of its lineage: no restore has left it behind."""


@dataclass(frozen=True, slots=True)
class LineageGraph:
    """Checkpoints of all lineages of a job, newest first: each comes before its predecessor."""

    nodes: list[LineageNode]
    head: CheckpointName | None
    """Last checkpoint of the requested lineage."""

    @property
    def has_forks(self) -> bool:
        """Return whether the job has a branch or a restore."""
        return not all(node.name.lineage is None and node.on_line for node in self.nodes)


def lineage_graph(config: JobConfig) -> LineageGraph:
    """Return the lineages of a job and of all its branches; for a branch, its own and the job's.

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
    return LineageGraph(nodes, None if last is None else CheckpointName(config.branch, last.checkpoint_id))


_Key = tuple[int, bool, int]


def _keyed(lineage: str | None, log: CheckpointLog, origins: dict[int, _Key]) -> Iterator[tuple[_Key, LineageNode]]:
    """Yield the checkpoints of a lineage, oldest first, each with a key that sorts the checkpoints of all lineages.

    The key begins with the time of the commit. If clocks disagree, a checkpoint still sorts after lower ids and after its fork.
    """
    checkpoints = [checkpoint for checkpoint in log.checkpoints if lineage is None or checkpoint.has_state]
    led_here = {checkpoint.checkpoint_id for checkpoint in log.lineage.newest_first()}
    fork = next((checkpoint.restored_from for checkpoint in checkpoints if checkpoint.kind is Kind.FORK), None)
    earliest = origins[fork][0] if fork in origins else 0
    times = accumulate((checkpoint.committed_at for checkpoint in checkpoints), max, initial=earliest)
    for checkpoint, time in zip(checkpoints, [*times][1:], strict=True):
        number = checkpoint.checkpoint_id
        node = LineageNode(
            CheckpointName(lineage, number), checkpoint, _before(lineage, log, checkpoint), number in led_here
        )
        yield (time, lineage is not None, number), node


def _before(lineage: str | None, log: CheckpointLog, checkpoint: Checkpoint) -> CheckpointName | None:
    if checkpoint.kind is Kind.FORK and checkpoint.restored_from is not None:
        return CheckpointName(None, checkpoint.restored_from)
    before = log.lineage.before(checkpoint)
    return None if before is None else CheckpointName(lineage, before.checkpoint_id)


def _log(config: JobConfig) -> CheckpointLog:
    return CheckpointLog(JobFolder.of(config))
