"""Interface of a topic: it tells the driver its offsets, and lands ranges of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.sources.landed import OffsetRange


class Bounds(NamedTuple):
    """Offsets of a partition from `first` (inclusive) to `end` (exclusive), without those of open transactions."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """State of a topic at one moment: its id, which changes when the topic is deleted and created again, and its partitions."""

    topic_id: str
    partitions: Mapping[int, Bounds]


class Topic(Protocol):
    """Topic, as the driver of a job sees it.

    Each method raises `ServiceError` when no broker answers, and `SourceError` when there is no such topic, or the brokers refuse.
    """

    def state(self) -> TopicState:
        """Ask the brokers for the topic's id and partitions."""
        ...

    def offsets_at(self, moment: int) -> Mapping[int, int]:
        """Return for each partition the first offset whose message is not older than a moment (ms), or its end without one."""
        ...

    def land(self, ranges: Mapping[OffsetRange, str], folder: str, storage: Mapping[str, str] | None) -> None:
        """Write the messages of each range to the file of its name in `folder` (`headrace.sources.landed`).

        Each range is of a different partition. A file is complete or missing, also after an error.
        """
        ...
