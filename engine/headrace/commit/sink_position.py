"""How far a sink was published, and whether that fits the job's log.

A sink has the id of the last checkpoint that was published to it, as its Delta transaction; the log has all checkpoints
that were committed. A checkpoint is committed first, then published, then the next one is committed. So these are the
cases, for a log that ends at checkpoint 7, where 5, 6 and 7 write to the sink:

    sink at 7    they agree
    sink at 6    7 is not published yet: the next opening publishes its staged files
    sink at 5    6 was published, and is lost: the sink is an older copy
    sink at 9    the log has lost 8 and 9: the job's folder is an older copy. Delta would skip the next 8 and 9 without a
                 word, since it takes them for published

Ids begin anew with each life of a job. So a sink also has the number of the life that wrote it, its incarnation, and so
have the checkpoints. Where both are known and differ, the ids say nothing about each other:

    sink at 7 of another life    the job's folder was moved away and begun anew, or the sink was brought from elsewhere

A log may end later than its sink: savepoints, compactions and migrations write to no sink. Delta's RESTORE of a sink by
hand is not seen here: it keeps the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.log import incarnation_of
from headrace.config import JobConfig
from headrace.errors import SinkMismatchError
from headrace.sinks.delta_table import delta_table_sink
from headrace.sinks.sink import NEVER
from headrace.tables.store import TableMissingError, storage_errors


class SinkPosition:
    """The position of one sink in the line of a job's checkpoints, as of the moment of construction."""

    def __init__(self, config: JobConfig, sink: str, line: Sequence[Checkpoint]) -> None:
        """Read the sink's transaction. `line` has all checkpoints of the job, and may be empty.

        Raises `StorageError` when the table cannot be read.
        """
        self._config, self._sink, self._line = config, sink, line
        self._path = config.sinks[sink].path
        self.exists = True
        self.published = NEVER
        self.incarnation: int | None = None
        try:
            with storage_errors(f"to open sink '{sink}' at {self._path}"):
                target = delta_table_sink(config, sink)
                table = target.latest()
                self.published, self.incarnation = target.published(table), target.incarnation(table)
        except TableMissingError:
            self.exists = False

    @cached_property
    def first_missing(self) -> int | None:
        """The first checkpoint that belongs into the sink and is not in it."""
        written = [c.checkpoint_id for c in self._line if c.outputs.get(self._sink)]
        if not written:
            return None
        # A restore is published to every sink that had been written by then.
        restores = [c.checkpoint_id for c in self._line if c.kind is Kind.RESTORE and c.checkpoint_id > written[0]]
        return min((i for i in (*written, *restores) if i > self.published), default=None)

    def problem(self) -> str | None:
        """Return what to do where job and sink disagree; None if they agree."""
        return self.beyond_repair() or self.behind()

    def beyond_repair(self) -> str | None:
        """Return what to do about a sink that no restore of the job can fit; None if there is no such trouble."""
        return self.foreign() or self.ahead()

    def foreign(self) -> str | None:
        """Return what to do about a sink that another life of the job has written; None if none has, as far as it is known."""
        own = incarnation_of(self._line)
        if own is None or self.incarnation in {None, own}:
            return None
        folder = self._config.job_folder
        return (
            f"{self._name} was written by another life of job '{self._config.job}' than the one in {folder}: their checkpoints have the "
            f"same ids, and nothing else in common. The sink has checkpoint {self.published} of life {self.incarnation:x}; the folder "
            f"is of life {own:x} and ends at checkpoint {self._last_id}. No table was changed. Bring back the folder that belongs "
            "to the sink; or the sink that belongs to the folder; or give the sink another path and fill it with "
            f"'headrace restore {self._config.job} --to 0 --why ...'; or, to start anew, move the folder and all sinks away."
        )

    def ahead(self) -> str | None:
        """Return what to do about a sink that is ahead of the log; None if it is not."""
        if self.published <= self._last_id:
            return None
        folder = self._config.job_folder
        log = (
            f"the log in {folder} ends at checkpoint {self._last_id}" if self._line else f"{folder} has no checkpoints"
        )
        return (
            f"{self._name} has what checkpoint {self.published} of this job published, but {log}. Going on would lose "
            "rows: Delta skips a checkpoint whose id is not above the sink's. No table was changed. Bring back a copy of "
            f"{folder} that has checkpoint {self.published}; or copies of that folder and of all sinks from the same "
            "moment; or, to start anew, move that folder and all sinks away. Delta's RESTORE of the sink does not help: "
            "it keeps the id."
        )

    def behind(self) -> str | None:
        """Return what to do about a sink that lacks what cannot be published any more; None if nothing is lost.

        The last checkpoint may be unpublished, as long as its staged files are there. If it is a restore, its
        publication also replaces all that was written after the checkpoint that it went back to.
        """
        missing = self.first_missing
        if missing is None:
            return None
        if not self.exists:
            return f"the table of {self._name} is gone, but checkpoint {missing} was published to it. {self._ways_back(missing)}"
        last = self._line[-1]
        reach = self._last_id - 1 if last.restored_from is None else last.restored_from
        if missing <= reach:
            had = f"up to checkpoint {self.published}" if self.published > NEVER else "before the first checkpoint"
            return (
                f"{self._name} has what was published {had}, but checkpoint {missing} was published as well. "
                f"{self._ways_back(missing)}"
            )
        if lost := self._lost_files(last):
            return (
                f"checkpoint {missing} is not published in {self._name}, and of its staged files {lost[0]}. "
                "Nobody can tell whether it changed the sink: a release of Headrace before this one removed them after a "
                "MERGE that changed nothing, but they may also be lost, or the sink may be a copy from before that "
                f"checkpoint. {self._ways_back(missing)}"
            )
        return None

    @property
    def _name(self) -> str:
        return f"sink '{self._sink}' at {self._path}"

    @property
    def _last_id(self) -> int:
        return self._line[-1].checkpoint_id if self._line else NEVER

    def _ways_back(self, missing: int) -> str:
        return (
            f"No table was changed. Bring back a copy of the sink that has checkpoint {missing}; or take the job back to "
            f"where the sink is ('headrace restore {self._config.job} --to {missing - 1} --why ...'), and the next run "
            f"takes in the input since then again; or, to start anew, move {self._config.job_folder} and all sinks away."
        )

    def _lost_files(self, checkpoint: Checkpoint) -> list[str]:
        with storage_errors(f"to look for staged files of {self._name}"):
            sink = delta_table_sink(self._config, self._sink)
            return sink.lost_files(checkpoint.outputs.get(self._sink, []))


def check_sinks(config: JobConfig, line: Sequence[Checkpoint], *, restores: bool = False) -> bool:
    """Refuse to go on where job and sinks disagree; return whether the last checkpoint can be published.

    With `restores` a sink may be behind (the result is False then): a restore to a checkpoint that it has mends that.
    Raises `SinkMismatchError`.
    """
    positions = [SinkPosition(config, sink, line) for sink in sorted(config.sinks)]
    for position in positions:
        if message := position.beyond_repair():
            raise SinkMismatchError(message)
    losses = [message for position in positions if (message := position.behind())]
    if losses and not restores:
        raise SinkMismatchError(losses[0])
    return not losses
