"""Lease of a job: one run at a time holds it, named by its process.

Lease: the claim of one run on a job, taken at its start, renewed while it works, given up at its end.

    HOST:PID:START:BOOT:NAMESPACES        web-1:4711:893217:5a2b…:4026531836-4026531834

A process number means something within one PID namespace of one boot of a machine. Two containers may have the same host name and the same
numbers, and two machines the same name. So a process is looked for only where boot and namespaces are those of this process; of all others
it is unknown whether they run. START counts ticks since the boot: it does not change when
the clock is set.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from headrace import clock, threads
from headrace.errors import FencedError, StorageError
from headrace.log.checkpoint import Checkpoint, Lease
from headrace.log.log import CheckpointLog, lease_until

Notify = Callable[[str, str], None]
"""Function that takes the kind of an event and a sentence."""


def silent(kind: str, message: str) -> None:
    """Ignore the event."""
    del kind, message


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


_POLL = 500
"""Time between two reads of the log while a run waits for a lease (ms)."""

_held_here: set[str] = set()
"""Attempts of this process that hold a job. A lease of this process without such an attempt is a leftover."""


class JobLease:
    """A claimed job. All appends to its `checkpoints` table go through here while the run lasts."""

    def __init__(
        self, log: CheckpointLog, run_id: str, attempt_id: str, seconds: float, notify: Notify = silent
    ) -> None:
        """Describe the claim; `claimed` makes it. Calls `notify` when it waits for another run's lease."""
        self.run_id, self.attempt_id = run_id, attempt_id
        self.abandoned: str | None = None
        """Attempt that held the job before and has not given it up, since its process died."""
        self._log = log
        self._seconds = seconds
        self._notify = notify
        self._holder = this_process()
        self._lock = threads.lock()
        self._lost: FencedError | None = None

    @contextmanager
    def claimed(self, *, force: bool = False) -> Iterator[JobLease]:
        """Hold the job for the length of a block.

        Takes over a lease of a dead process of this machine at once. Waits for a lease of which nobody knows here whether its process
        runs (another machine, container or boot) until it ends, but
        at most for the length of this lease: a clock that runs ahead there must not block the job. Raises `FencedError`
        when its holder is alive or renews it meanwhile. `force` takes the job in any case; the former holder then fails.
        """
        if not force:
            self._wait_for_holder()
        before = self._log.lease
        if before is not None and before.left(before.claimed_at):
            self.abandoned = before.attempt_id
        self._log.claim(self._lease())
        _held_here.add(self.attempt_id)
        try:
            self._log.tidy()
            with threads.repeating(self._seconds / 3, self._renew, "headrace-lease"):
                yield self
        finally:
            _held_here.discard(self.attempt_id)
            self._give_up()

    def check(self) -> None:
        """Raise `FencedError` if a renewal has found the job lost."""
        if self._lost is not None:
            raise self._lost

    def confirm(self) -> None:
        """Read the log again. Raises `FencedError` if another run has written to `checkpoints`."""
        with self._lock:
            self.check()
            self._log.check_newest()

    def append(self, checkpoint: Checkpoint, before: Sequence[Checkpoint] = ()) -> None:
        """Commit a checkpoint and renew the lease in the same row. Checkpoints `before` it join the same commit.

        Raises `FencedError` when another run wrote to the table meanwhile.
        """
        with self._lock:
            self.check()
            self._log.append(checkpoint, self._lease(), before)

    def compact_log(self) -> None:
        """Rewrite the `checkpoints` table as one file."""
        with self._lock:
            self.check()
            self._log.compact()

    def _lease(self) -> Lease:
        return lease_until(self.run_id, self.attempt_id, self._holder, self._seconds)

    def _wait_for_holder(self) -> None:
        lease = self._log.lease
        if lease is None or not lease.left(clock.now()):
            return
        alive = is_alive(lease.holder)
        if alive is False or (lease.holder == self._holder and lease.attempt_id not in _held_here):
            return
        if alive:
            raise _held(lease)
        self._wait_for_end(lease)

    def _wait_for_end(self, lease: Lease) -> None:
        """Wait until a lease has ended. Count the sleeps and do not read the clock, which may be set meanwhile."""
        left = min(lease.left(clock.now()), round(self._seconds * 1000))
        self._notify("lease", _waiting(lease, left))
        while left > 0:
            nap = min(_POLL, left)
            clock.sleep(nap / 1000)
            left -= nap
            self._log.refresh()
            if self._log.lease != lease:
                self._check_given_up(self._log.lease)
                return

    def _check_given_up(self, lease: Lease | None) -> None:
        if lease is not None and lease.left(clock.now()):
            raise _held(lease)

    def _renew(self) -> None:
        with self._lock:
            if self._lost is None:
                self._try_renewal()

    def _try_renewal(self) -> None:
        try:
            self._log.claim(self._lease())
        except FencedError as error:
            self._lost = error
        except StorageError:
            return  # retried later; every commit is a compare-and-set anyway

    def _give_up(self) -> None:
        if self._lost is None:
            ended = lease_until(self.run_id, self.attempt_id, self._holder, 0)
            try:
                self._log.claim(ended)
            except FencedError as error:
                self._lost = error
            except StorageError:
                return  # the lease expires by itself, so report the error of the block


def _held(lease: Lease) -> FencedError:
    return FencedError(
        f"{_named(lease)} holds the job; its lease ends in {lease.left(clock.now()) / 1000:.0f} s unless renewed. "
        "Nothing was done: let that run finish, then run again."
    )


def _waiting(lease: Lease, left: int) -> str:
    return (
        f"waiting up to {left / 1000:.0f} s for {_named(lease)}: it holds the job from another machine or container, and may be dead. "
        "Unless it renews its lease, this run takes over then; --force-fail-over does so at once."
    )


def _named(lease: Lease) -> str:
    return f"run {lease.run_id}, attempt {lease.attempt_id} ({lease.holder})"
