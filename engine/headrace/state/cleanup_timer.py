"""The timer that removes the expired entries of a group (FLIP-25, exact cleanup): whose it is, and where it is known.

A group has one. That it fires in time, the timer service knows; which one a group has, an entry of the backend tells:

    x <state> 00 <key> 00 <namespace>  ->  when it fires (ms)

It is made from the timers wherever those are loaded, so no table has it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.state.backend import Write
from headrace.state.timer_service import EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP, Timer

CLEANUP = b"x"
"""First byte of the entries."""

CLEANUP_DOMAINS = (EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP)
_TIME = struct.Struct(">q")
_SLASH = "/"  # no state has it in its name


class Group(NamedTuple):
    """All that a state has for a key in a namespace."""

    state: str
    key_json: bytes
    namespace: str = ""

    @property
    def entry(self) -> bytes:
        """The entry that tells when its timer fires."""
        return b"%b%b\x00%b\x00%b" % (CLEANUP, self.state.encode(), self.key_json, self.namespace.encode())

    def timer(self, time: int, domain: str) -> Timer:
        """Its timer."""
        namespace = f"{self.state}{_SLASH}{self.namespace}" if self.namespace else self.state
        return Timer(time, self.key_json, domain, namespace)


def group_of_timer(timer: Timer) -> Group:
    """The group that a cleanup timer belongs to."""
    state, _, namespace = timer.namespace.partition(_SLASH)
    return Group(state, timer.key_json, namespace)


def key_of(entry: bytes) -> bytes:
    """The key of a `Group.entry`."""
    return entry.split(b"\x00")[1]


def stored_time(time: int | None) -> bytes | None:
    """The value of a `Group.entry`."""
    return None if time is None else _TIME.pack(time)


def time_of(stored: bytes | None) -> int | None:
    """When a timer fires, from the value of a `Group.entry`."""
    if stored is None:
        return None
    (time,) = _TIME.unpack(stored)
    return int(time)


def known_timers(timers: Iterable[Timer]) -> Iterator[Write]:
    """The entries that follow from the cleanup timers among all that are registered."""
    for timer in timers:
        if timer.domain in CLEANUP_DOMAINS:
            yield group_of_timer(timer).entry, stored_time(timer.timestamp)
