"""Identity of a process in the text of a lease, and whether it still runs.

    HOST:PID:START:BOOT:NAMESPACES        web-1:4711:893217:5a2b…:4026531836-4026531834

A process number means something within one PID namespace of one boot of a machine. Two containers may have the same host name and the same
numbers, and two machines the same name. So a process is looked for only where boot and namespaces are those of this process; of all others,
and of the texts of earlier releases (HOST:PID:TIME), it is unknown whether they run. START counts ticks since the boot: it does not change when
the clock is set.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

import psutil

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_NAMESPACES: Final = ("pid", "time")
"""The time namespace counts as well: it shifts what START counts from."""
_DEAD: Final = ("Z", "X")
_PARTS: Final = 5


def this_process() -> str:
    """Return the text that identifies this process; without /proc one of which nobody knows whether it runs."""
    place, started = _place(), _stat(os.getpid())
    if place is None or started is None:
        return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.2f}"
    return f"{socket.gethostname()}:{os.getpid()}:{started[1]}:{place}"


def is_alive(holder: str) -> bool | None:
    """Return whether the process that a text identifies still runs; None if that cannot be known from here."""
    parts = holder.rsplit(":", _PARTS - 1)
    if len(parts) < _PARTS or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    host, pid, started, *place = parts
    if host != socket.gethostname() or ":".join(place) != _place():
        return None
    stat = _stat(int(pid))
    if stat is None:
        return _is_seen(int(pid))
    state, begun = stat
    return begun == int(started) and state not in _DEAD


def _place() -> str | None:
    """Return boot and namespaces of this process; None without a /proc of its own PID namespace."""
    try:
        if (_PROC / "self").readlink().name != str(os.getpid()):
            return None
        inodes = (str((_PROC / "self" / "ns" / name).stat().st_ino) for name in _NAMESPACES if _has(name))
        return f"{_BOOT_ID.read_text().strip()}:{'-'.join(inodes)}"
    except OSError:
        return None


def _has(namespace: str) -> bool:
    return (_PROC / "self" / "ns" / namespace).exists()


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state of a process, and its start in ticks since the boot; None if /proc does not show it."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


def _is_seen(pid: int) -> bool | None:
    """Return False if there is no such process, and None if /proc hides it: with `hidepid`, it shows no process of another user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return None
    return None
