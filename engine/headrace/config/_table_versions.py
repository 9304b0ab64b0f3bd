"""Versions of a table and offsets of a topic in a job's file: where a source begins, and what it skips."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace.config._moments import parse_moment

_START_RULE: Final = (
    "expected earliest, latest, snapshot, a version such as 'version 12', or a day or a moment such as 2026-01-31 or "
    "2026-01-31T06:00Z"
)
_VERSION: Final = re.compile(r"version +(\d{1,18})")
_VERSIONS: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


class StartKind(Enum):
    """Kind of a start."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"
    VERSION = "version"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Start:
    """Place where reading begins. `value` is the first version to read, or a moment (ms): earlier commits are not read."""

    kind: StartKind
    value: int = 0


def parse_start(text: str) -> Start:
    """Return the start that a job's file names under `start`. A moment without a time zone is in UTC.

    Raises `ValueError` that names the expected forms.
    """
    if text in {StartKind.EARLIEST.value, StartKind.LATEST.value, StartKind.SNAPSHOT.value}:
        return Start(StartKind(text))
    if match := _VERSION.fullmatch(text):
        return Start(StartKind.VERSION, int(match[1]))
    try:
        return Start(StartKind.TIME, parse_moment(text))
    except ValueError:
        msg = f"'{text}' is no start: {_START_RULE}"
        raise ValueError(msg) from None


def parse_versions(text: str) -> tuple[range, ...]:
    """Return the versions in a text such as `17` or `3, 13-17`; both ends of a range are included.

    Raises `ValueError` that names the expected forms.
    """
    ranges = []
    for part in text.split(","):
        match = _VERSIONS.fullmatch(part.strip())
        if match is None or int(match[1]) > int(match[2] or match[1]):
            msg = f"'{part.strip()}' names no versions: expected one such as 17, or the first and the last one such as 13-17"
            raise ValueError(msg)
        ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(ranges)


def parse_offsets(text: str) -> dict[int, tuple[range, ...]]:
    """Return the offsets in a text such as `0:17` or `0:120-499, 3:7`, by partition; both ends of a range are included.

    Raises `ValueError` that names the expected forms.
    """
    by_partition: dict[int, tuple[range, ...]] = {}
    for part in text.split(","):
        partition, _, offsets = part.strip().partition(":")
        if not partition.isascii() or not partition.isdecimal() or len(partition) > _DIGITS_OF_A_PARTITION:
            raise ValueError(_no_offsets(part))
        try:
            ranges = parse_versions(offsets)
        except ValueError:
            raise ValueError(_no_offsets(part)) from None
        by_partition[int(partition)] = (*by_partition.get(int(partition), ()), *ranges)
    return by_partition


_DIGITS_OF_A_PARTITION = 10


def _no_offsets(part: str) -> str:
    return (
        f"'{part.strip()}' names no offsets: expected a partition and an offset such as 0:17, or a partition, the first and the "
        "last offset such as 0:120-499"
    )
