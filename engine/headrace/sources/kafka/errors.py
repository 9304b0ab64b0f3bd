"""Errors for topics that cannot be read further. They name partitions and offsets, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.config import SourceConfig
from headrace.errors import OpenIntervalError, SourceError
from headrace.sources.interval import Interval, timestamp_text


@dataclass(frozen=True, slots=True)
class KafkaErrors:
    """Maker of the errors of one source."""

    source: str
    config: SourceConfig
    is_branch: bool = False
    job: str = "JOB"

    def expired(self, partition: int, wanted: int, earliest: int) -> SourceError:
        """Return the error for messages that the topic no longer has."""
        offsets = str(wanted) if wanted == earliest - 1 else f"{wanted}-{earliest - 1}"
        skipped = f"{self.config.skip_offsets}, " if self.config.skip_offsets else ""
        if self.is_branch:
            return SourceError(
                f"source '{self.source}': the branch needs offsets {offsets} of partition {partition} of {self.config.place}. The topic "
                f"begins at offset {earliest}, and the job has no landed file with offset {wanted} any more (retention.hours). Nothing was "
                "taken in, and the job is unchanged. Fork a branch at a later checkpoint (sources."
                f"{self.source}.position.partitions in 'headrace checkpoints {self.job} --json' has the position of each). If the branch can do without these "
                f"messages, run it with --set 'sources.{self.source}.skip_offsets={skipped}{partition}:{offsets}'."
            )
        return SourceError(
            f"source '{self.source}': partition {partition} of {self.config.place} begins at offset {earliest}, and this job has "
            f"read it up to offset {wanted}: the messages between are gone (retention.ms, retention.bytes, or DeleteRecords). "
            "Nothing was taken in. If this job can do without them, skip them: "
            f"sources.{self.source}.skip_offsets: {skipped}{partition}:{offsets}. Else fill them in from elsewhere, or begin a new "
            "job. To prevent this, run the job more often, or keep messages for longer."
        )

    def open(self, partitions: Sequence[int], interval: Interval, idle_after: int) -> OpenIntervalError:
        """Return the error for an interval to which messages may still come in these partitions. `idle_after` in ms."""
        end = timestamp_text(interval.end)
        numbers = ", ".join(map(str, partitions))
        have = f"partition {numbers} has" if len(partitions) == 1 else f"partitions {numbers} have"
        return OpenIntervalError.until(
            f"source '{self.source}': interval {interval} is not over: {have} no message of {end} or later yet, and more may come to it. Nothing was taken "
            f"in. Run it again later: {'they count' if len(partitions) > 1 else 'it counts'} as idle from {timestamp_text(interval.end + idle_after)} on (sources."
            f"{self.source}.interval.idle_after).",
            interval.end + idle_after,
        )

    def goes_back(self, partition: int, offset: int, interval: Interval) -> SourceError:
        """Return the error for a message of corrected input whose time and whose offset lie in different intervals."""
        return SourceError(
            f"source '{self.source}': corrected input for {interval}: by the times of messages, offset {offset} of partition {partition} of {self.config.place} lies "
            "in another interval than by its place behind the others: times go back there. Nothing was taken in. Write the messages of each correction "
            "to a topic of their own, in the order of their times, and name that with --source."
        )

    def replaced(self, topic_id: str, known: str) -> SourceError:
        """Return the error for another topic of the same name."""
        return SourceError(
            f"source '{self.source}': {self.config.place} is another topic than the one that was read (its id is {topic_id}, and was "
            f"{known}): it was deleted and made anew. Nothing was taken in. Read the new one in a new job."
        )

    def behind(self, partition: int, end: int, read: int) -> SourceError:
        """Return the error for a partition that ends before offset `read`."""
        return SourceError(
            f"source '{self.source}': partition {partition} of {self.config.place} ends at offset {end}, and this job has read it up to "
            f"offset {read}: the topic has lost messages that were acknowledged (an unclean leader election, or a restored copy). "
            "Nothing was taken in. Restore this job to a checkpoint that has read no more "
            f"(sources.{self.source}.position.partitions in 'headrace checkpoints {self.job} --json'), or begin a new job."
        )

    def without(self, partition: int) -> SourceError:
        """Return the error for a partition that no longer exists."""
        return SourceError(
            f"source '{self.source}': {self.config.place} has no partition {partition} any more, and this job has read it. Nothing was "
            "taken in. Brokers never remove partitions, so check whether 'servers' names another cluster."
        )

    def not_landed(self, folder: str, names: Sequence[str]) -> SourceError:
        """Return the error for landed files that are needed and do not exist."""
        return SourceError(
            f"source '{self.source}': {', '.join(names)} in {folder} is gone, and not all of its messages were taken in yet. Nothing was "
            f"taken in. Put it back, or restore a checkpoint before it ('headrace checkpoints {self.job}' lists them)."
        )
