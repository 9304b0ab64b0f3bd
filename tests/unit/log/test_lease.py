"""The lease: one process at a time holds a job (in memory, on a virtual clock)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import clock as engine_clock
from headrace import threads
from headrace.errors import FencedError
from headrace.log import lease as processes
from headrace.log.checkpoint import Checkpoint, Kind, Lease
from headrace.log.lease import JobLease, is_alive, this_process
from headrace.log.log import CheckpointLog, lease_until
from headrace.tables.folder import JobFolder
from headrace.testing._memory_disk import disk_and_path, forget_disk
from headrace.testing._world_threads import WorldThreads
from tests.jobs.home import PYTHONPATH
from tests.unit.support.fuzzing import examples

JOB = "memory://leases/job"
SECONDS = 60
YEARS = 5 * 365 * 86_400_000


@pytest.fixture
def disk(clock):
    log_of().create()
    yield disk_and_path(JOB)[0]
    forget_disk("leases")


def log_of():
    return CheckpointLog(JobFolder(str(JOB)))


def lease_of(name, seconds=SECONDS):
    return JobLease(log_of(), name, f"attempt of {name}", seconds)


def left_behind(holder, seconds=SECONDS, ahead=0):
    """Create a lease that is never released, of a host whose clock is `ahead` ms ahead."""
    now = engine_clock.now() + ahead
    lease = Lease("old", "attempt of old", holder, now + seconds * 1000, now)
    log_of().claim(lease)
    return lease


def holder_in_log():
    lease = log_of().lease
    return lease.run_id if lease.expires_at > engine_clock.now() else None


def test_lease_is_claimed_and_released(disk, clock):
    with lease_of("run").claimed() as lease:
        lease.check()
        assert log_of().lease == Lease("run", "attempt of run", this_process(), 1_000_000 + 60_000, 1_000_000)
    assert holder_in_log() is None


def test_compaction_of_the_log_keeps_the_lease(disk):
    with lease_of("run").claimed() as lease:
        lease.compact_log()
        assert holder_in_log() == "run"


def test_lease_is_released_after_an_error(disk):
    with pytest.raises(ZeroDivisionError), lease_of("run").claimed():
        raise ZeroDivisionError
    assert holder_in_log() is None
    with lease_of("next").claimed():
        assert holder_in_log() == "next"


def test_lease_of_a_dead_process_is_taken(disk, clock):
    left_behind(with_part(2, "1"))  # a process that had this number before
    with lease_of("next").claimed():
        assert (holder_in_log(), clock.now()) == ("next", 1_000_000)


def with_part(place, text):
    """Return the text of this process with another part: 0 host, 1 number, 2 start, 3 boot, 4 namespaces."""
    parts = this_process().split(":")
    parts[place] = text
    return ":".join(parts)


def test_lease_distinguishes_processes():
    assert is_alive(this_process()) is True
    assert is_alive(with_part(2, "1")) is False
    assert is_alive(with_part(1, str(2**22 + 1))) is False


@pytest.mark.parametrize(("place", "text"), [(0, "elsewhere"), (3, "another boot"), (4, "4026532222-1"), (2, "0.00")])
def test_process_elsewhere_is_unknown(place, text):
    assert is_alive(with_part(place, text)) is None


@pytest.mark.parametrize(
    "text", ["{}:{}:0.00", "{}:{}:1772370000.25", "{}:{}:1", "{}:{}:x:y:z", "", "{}", "a:b:c:d:e:f"]
)
def test_texts_of_others_are_unknown(text):
    assert is_alive(text.format(socket.gethostname(), os.getpid())) is None


@given(st.text(), st.integers(-(2**70), 2**70), st.text(), st.text())
def test_any_text_is_read(host, pid, started, rest):
    assert is_alive(f"{host}:{pid}:{started}:{rest}") in {None, False}


def test_zombie_is_dead():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        own = this_process().split(":")
        assert is_alive(":".join([own[0], str(child.pid), started, *own[3:]])) is False


def test_step_of_the_clock_changes_no_identity(monkeypatch):
    """Psutil gives the start by the wall clock, and a step moves it."""
    before = this_process()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: 0.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert this_process() == before
    assert is_alive(before) is True


def test_system_without_proc_knows_nothing(monkeypatch, tmp_path):
    known = this_process()
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert is_alive(known) is None
    assert is_alive(this_process()) is None


UNSHARED = ["unshare", "--pid", "--fork", "--mount-proc"]


def test_holder_in_another_pid_namespace_is_unknown():
    code = "from headrace.log.lease import is_alive, this_process; import sys; print(is_alive(sys.argv[1]), this_process())"
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, *UNSHARED[1:], "true"], capture_output=True, check=False).returncode:
        pytest.skip("makes a PID namespace, which this system does not allow")
    line = [unshare, *UNSHARED[1:], sys.executable, "-c", code, this_process()]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    verdict, other = subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert verdict == "None"
    assert is_alive(other) is None
    # A namespace without a /proc of its own would show the numbers of another one.
    inner = [unshare, "--pid", "--fork", sys.executable, "-c", code, this_process()]
    verdict, other = subprocess.run(inner, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert verdict == "None"
    assert is_alive(other) is None


def test_lost_attempt_of_this_process_is_taken(disk, clock):
    left_behind(this_process())
    with lease_of("next").claimed():
        assert (holder_in_log(), clock.now()) == ("next", 1_000_000)


def test_lease_held_by_this_process_is_refused(disk):
    with lease_of("run").claimed() as lease:
        with pytest.raises(FencedError, match=r"run run, attempt attempt of run .* ends in 60 s") as refused:
            lease_of("next").claimed().__enter__()
        assert refused.value.exit_code == 3
        assert holder_in_log() == "run"
        lease.check()


def test_lease_of_another_host_is_waited_for(disk, clock):
    left = left_behind("elsewhere:1:0.00")
    with lease_of("next").claimed():
        assert left.expires_at <= clock.now() < left.expires_at + 1_000
        assert holder_in_log() == "next"


@pytest.mark.parametrize("ahead", [YEARS, -YEARS, 30_000, -30_000])
@examples(15)
@given(seconds=st.integers(5, 600), own=st.integers(5, 600))
def test_no_wait_is_longer_than_run_lease(ahead, seconds, own):
    virtual = engine_clock.VirtualClock(1_000_000)
    with engine_clock.installed(virtual):
        log_of().create()
        left_behind("elsewhere:1:0.00", seconds, ahead)
        events = []
        lease = JobLease(log_of(), "next", "attempt of next", own, lambda *event: events.append(event))
        with lease.claimed():
            assert log_of().lease.run_id == "next"
        forget_disk("leases")
    waited = virtual.now() - 1_000_000
    left = min(seconds * 1000, max(0, seconds * 1000 + ahead), own * 1000)
    assert waited == left
    assert len(events) == (1 if left else 0)


def test_waiting_is_reported_once_with_the_holder(disk, clock):
    left_behind("elsewhere:1:0.00", ahead=YEARS)
    events = []
    lease = JobLease(log_of(), "next", "attempt of next", SECONDS, lambda *event: events.append(event))
    with lease.claimed():
        ((kind, detail),) = events
    assert kind == "lease"
    assert "waiting up to 60 s for run old, attempt attempt of old (elsewhere:1:0.00)" in detail
    assert "--force-fail-over" in detail


def test_lease_released_by_fast_clock_is_taken(disk, clock):
    left_behind("elsewhere:1:0.00", seconds=0, ahead=YEARS)
    with lease_of("next").claimed():
        assert clock.now() == 1_000_000


class OtherHost(engine_clock.VirtualClock):
    """Another host acts while this one sleeps for the third time."""

    def __init__(self, act):
        super().__init__(1_000_000)
        self._naps, self._act = 0, act

    def sleep(self, seconds):
        super().sleep(seconds)
        self._naps += 1
        if self._naps == 3:
            self._act()


@pytest.fixture
def while_asleep(disk):
    before = []
    yield lambda act: before.append(engine_clock.use(OtherHost(act)))
    engine_clock.use(before[0])


def test_lease_renewed_meanwhile_is_refused(while_asleep):
    left_behind("elsewhere:1:0.00")
    while_asleep(lambda: left_behind("elsewhere:1:0.00"))
    with pytest.raises(FencedError, match="run old"):
        lease_of("next").claimed().__enter__()
    assert holder_in_log() == "old"


def test_renewal_by_clock_set_back_is_seen(while_asleep):
    left_behind("elsewhere:1:0.00", ahead=YEARS)
    while_asleep(lambda: left_behind("elsewhere:1:0.00"))
    with pytest.raises(FencedError, match="ends in 60 s unless renewed"):
        lease_of("next").claimed().__enter__()


def test_lease_released_meanwhile_is_taken(while_asleep):
    left = left_behind("elsewhere:1:0.00")
    while_asleep(lambda: left_behind("elsewhere:1:0.00", 0))
    with lease_of("next").claimed():
        assert engine_clock.now() < left.expires_at
        assert holder_in_log() == "next"


def test_force_takes_a_lease_that_is_held(disk):
    with lease_of("former").claimed() as former:
        with lease_of("next").claimed(force=True):
            with pytest.raises(FencedError, match="run next, attempt attempt of next"):
                former.compact_log()
            assert holder_in_log() == "next"
        assert holder_in_log() is None


def test_former_holder_does_not_give_up_another_lease(disk):
    former = lease_of("former").claimed()
    former.__enter__()
    with lease_of("next").claimed(force=True) as following:
        former.__exit__(None, None, None)
        assert holder_in_log() == "next"
        following.compact_log()


def test_one_of_two_claims_at_once_wins(disk):
    first, second = lease_of("first"), lease_of("second")  # both have read the log
    with first.claimed():
        with pytest.raises(FencedError, match="run first"):
            second.claimed(force=True).__enter__()
        first.check()
        assert holder_in_log() == "first"


@pytest.fixture
def stepped(disk):
    stepped = WorldThreads()
    before = threads.use(stepped)
    yield stepped
    threads.use(before)


def test_lease_is_renewed_while_it_is_held(stepped, clock):
    with lease_of("run").claimed() as lease:
        clock.advance(5_000)
        stepped.beat()
        assert log_of().lease.expires_at == 1_005_000 + 60_000
        lease.compact_log()  # on top of the renewal
        lease.check()


def test_renewal_detects_a_lost_lease(stepped, clock):
    with lease_of("run").claimed() as lease:
        left_behind("elsewhere:1:0.00")
        stepped.beat()
        with pytest.raises(FencedError, match="run old"):
            lease.compact_log()
        with pytest.raises(FencedError, match="run old"):
            lease.check()
    assert holder_in_log() == "old"


def test_lost_lease_appends_no_checkpoint(stepped, clock):
    """The renewal has read the row of the new holder, so a commit on top of it would succeed."""
    with lease_of("former").claimed() as former:
        left_behind("elsewhere:1:0.00")
        stepped.beat()
        with pytest.raises(FencedError, match="run old"):
            former.append(
                Checkpoint(
                    incarnation=1,
                    checkpoint_id=0,
                    kind=Kind.INITIAL,
                    run_id="former",
                    attempt_id="a",
                    max_parallelism=1,
                    versions={},
                    committed_at=clock.now(),
                )
            )
    assert log_of().checkpoints == []


def test_renewal_is_tried_again_after_a_storage_error(stepped, disk, clock):
    failures = [OSError("disk is gone")]

    def fail_once(step, path):
        if step == "commit" and failures:
            raise failures.pop()

    with lease_of("run").claimed() as lease:
        clock.advance(5_000)
        with disk.failing(fail_once):
            stepped.beat()
            assert log_of().lease.expires_at == 1_000_000 + 60_000
            stepped.beat()
        assert log_of().lease.expires_at == 1_005_000 + 60_000
        lease.check()


def test_lease_ends_by_itself_if_storage_refuses(disk, clock):
    def fail(step, path):
        if step == "commit":
            raise OSError(path)

    with lease_of("run").claimed():
        disk.fault = fail
    disk.fault = lambda *_: None
    assert holder_in_log() == "run"
    clock.advance(SECONDS * 1000)
    assert holder_in_log() is None


def first(attempt):
    return Checkpoint(
        incarnation=1, checkpoint_id=0, kind=Kind.INITIAL, run_id="r", attempt_id=attempt, max_parallelism=1, versions={}, committed_at=0
    )  # fmt: skip


def test_run_that_slept_finds_another_log(tmp_path):
    """The job was dropped and begun anew meanwhile, with as many commits: a commit on top of them would succeed."""
    folder = tmp_path / "job"
    slept = CheckpointLog(JobFolder(str(folder)))
    slept.create()
    slept.claim(lease_until("slept", "a", "x", 60))
    shutil.rmtree(folder)
    anew = CheckpointLog(JobFolder(str(folder)))
    anew.create()
    anew.claim(lease_until("anew", "b", "y", 60))
    with pytest.raises(FencedError, match="was made anew"):
        slept.check_newest()
    with pytest.raises(FencedError, match="was made anew"):
        slept.append(first("a"), None)
    anew.append(first("b"), None)
    assert [checkpoint.attempt_id for checkpoint in CheckpointLog(JobFolder(str(folder))).checkpoints] == ["b"]
