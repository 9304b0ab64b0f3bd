"""What the driver asks of a topic: which offsets it has, and to land ranges of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.sources.landed import OffsetRange


class Bounds(NamedTuple):
    """The offsets that a partition has: from `first` up to and without `end`. Those of open transactions are not in it."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """One look at a topic: its id, which a topic of the same name that is made anew does not have, and its partitions."""

    topic_id: str
    partitions: Mapping[int, Bounds]


class Topic(Protocol):
    """A topic, as the driver of a job sees it.

    Each call raises `ServiceError` when no broker answers, and `SourceError` when there is no such topic, or the brokers refuse.
    """

    def state(self) -> TopicState:
        """Look at the topic."""
        ...

    def offsets_at(self, moment: int) -> Mapping[int, int]:
        """Return by partition the first offset whose message is not older than a moment (ms); its end where there is none."""
        ...

    def land(self, ranges: Mapping[OffsetRange, str], folder: str, storage: Mapping[str, str] | None) -> None:
        """Write each range as the file of this name in `folder`; see `headrace.sources.landed`.

        A range is of another partition each. A file is there whole or not at all, also when this raises.
        """
        ...
