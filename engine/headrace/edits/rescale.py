"""Rescaling: change the number of key groups, by rewriting every row of the state tables with the new group of its key.

A key's group depends only on its text and the number of groups. So afterwards the state equals that of a job which had this number
from its first run. A rescaling is one checkpoint of kind `migration`. Tasks rebuild their local copies.

The job's file has the number as well. Opening a job compares both, so no run starts between the rescaling and the change of the
file, in either order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from msgspec.structs import replace

from headrace.commit.branch_code import refuse_on_branch
from headrace.commit.protocol import OpenJob
from headrace.config import JobConfig
from headrace.edits.edit import JobView, LastState, Rewrite, StateEdit
from headrace.edits.rewrite import in_key_groups
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.names import counted
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.schemas import tables_in


@dataclass(frozen=True, slots=True)
class Rescaling:
    """Effect of a rescaling: the number of key groups before and after."""

    before: int
    after: int
    job: JobView

    def rows(self) -> dict[str, int]:
        """Count the live rows to rewrite, by table. Reads the whole state."""
        counts = {}
        for table in tables_in(self.job.last.versions):
            ranges = self.job.view(table).ranges(KeyGroupRange.all_of(self.before))
            counts[table] = sum(part.live(["key"]).num_rows for part in ranges)
        return {table: count for table, count in counts.items() if count}


@dataclass(frozen=True, slots=True)
class Rescale(StateEdit[Rescaling]):
    """Edit that gives the state another number of key groups, whatever number the job's file has.

    Raises `ConfigError` on a branch, if the state has this number already, and if it is below the job's `parallelism`.
    """

    max_parallelism: int
    why: str | None = None
    is_of_restore: bool = False
    """A restore brought back a state of another number than the job's file has. A branch may do that."""

    kind: ClassVar[Kind] = Kind.MIGRATION
    crash_point: ClassVar[str] = "rescale.prepared"

    def opened(self, config: JobConfig) -> JobConfig:
        """See `StateEdit.opened`: opening a job compares the number of its file with that of the state."""
        last = LastState.of(config)
        self.look(last)
        return replace(config, max_parallelism=last.last.max_parallelism)

    def look(self, job: JobView) -> Rescaling:
        """See `StateEdit.look`."""
        if not self.is_of_restore:
            refuse_on_branch(job.config, "change its key groups")
            _check_number(job.config, job.last, self.max_parallelism)
        return Rescaling(job.last.max_parallelism, self.max_parallelism, job)

    def rewrites(self, job: OpenJob, effect: Rescaling) -> Iterator[Rewrite]:
        """See `StateEdit.rewrites`: each live row."""

        def change(rows: pa.Table) -> pa.Table:
            return in_key_groups(rows, effect.after)

        for table in tables_in(job.versions):
            if (view := job.view(table)).files():
                yield Rewrite(table, "rescale", view, change, replaces=True)

    def facts(self, job: OpenJob, effect: Rescaling, rows: int) -> dict[str, Any]:
        """See `StateEdit.facts`. Local copies are of other key groups."""
        note = f"{counted(effect.after, 'key group')} instead of {effect.before}"
        return {
            "max_parallelism": effect.after,
            "base": job.last.without_copies(),
            "metrics": {"rows_rewritten": rows},
            "note": note if self.why is None else f"{note}: {self.why}",
        }


def _check_number(config: JobConfig, last: Checkpoint, max_parallelism: int) -> None:
    if max_parallelism < 1:
        raise ConfigError(f"a job has at least one key group, not {max_parallelism}. Nothing was changed.")
    if max_parallelism == last.max_parallelism:
        raise ConfigError(
            f"the state of job '{config.job}' has {counted(max_parallelism, 'key group')} already. Nothing was changed."
        )
    if (config.parallelism or 1) > max_parallelism:
        msg = (
            f"{config.where('parallelism')}: {counted(config.parallelism or 1, 'task')} cannot share {counted(max_parallelism, 'key group')}. Nothing was "
            "changed: lower parallelism first, or ask for more key groups."
        )
        raise ConfigError(msg)
