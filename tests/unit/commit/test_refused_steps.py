"""A disk refuses any step of any command: the error is a storage error, and no data is lost (in memory)."""

from __future__ import annotations

import errno
import os
from collections import Counter
from contextlib import contextmanager
from itertools import cycle

import pytest

from headrace.commit.verify import verify
from headrace.errors import StorageError
from tests.unit.edits.test_crash import SCRIPT, STEPS, assert_whole, contents, play
from tests.unit.support.memory_job import RETENTION

__all__ = ["contents"]
"""A fixture."""

ADVICE = {
    errno.ENOSPC: "free space",
    errno.EACCES: "the right to read and write",
    errno.EIO: "repair what it reports",
    errno.EROFS: "mount the file system for writing",
}
"""What an error advises, by its cause. Each step of an action is refused for one of them, in turns."""


@contextmanager
def refusing(disk, step, path, visit, *, until_repaired, number=errno.ENOSPC):
    """Refuse a step on a path at its n-th visit, with an error's number; with `until_repaired`, refuse all later steps too."""
    visits = Counter()

    def fault(name, where):
        visits[name, where] += 1
        count = visits[step, path]
        if (name, where) == (step, path) and count >= visit and (until_repaired or count == visit):
            raise OSError(number, os.strerror(number), where)

    with disk.failing(fault):
        yield


def transforms_of(disk, act):
    """Return each step of an action, with the number of its visit."""
    visits = Counter()

    def note(name, where):
        visits[name, where] += 1

    with disk.failing(note):
        act()
    return [(name, where, visit) for (name, where), count in visits.items() for visit in {1, count}]


def refusal_of(act):
    """Return the text of the storage error that ends an action; None if it goes on without what was refused."""
    try:
        act()
    except StorageError as refusal:
        return str(refusal)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("until_repaired", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", STEPS)
def test_refused_step_is_the_storages_fault(memory_job, clock, contents, name, until_repaired):
    job, number = memory_job, STEPS[name]
    before = play(job, clock, number - 1)
    if name == "vacuum":
        clock.advance(RETENTION)
    act = SCRIPT[number - 1][1]
    # Each attempt has a new name, so only paths without such a name occur again.
    causes, refused = cycle(ADVICE), []
    for (step, path, visit), cause in zip(transforms_of(job.disk, lambda: act(job)), causes, strict=False):
        before.bring_back()
        with refusing(job.disk, step, path, visit, until_repaired=until_repaired, number=cause):
            refused.append(refusal_of(lambda: act(job)))
        assert refused[-1] is None or ADVICE[cause] in refused[-1], (step, path)
        job.run()
        assert_whole(job, contents[job.last.checkpoint_id])
    assert any(refused)


@pytest.mark.slow
def test_verify_reports_a_refused_step(memory_job, clock):
    job = memory_job
    play(job, clock, 2)
    for step, path, visit in transforms_of(job.disk, lambda: verify(job.config)):
        with refusing(job.disk, step, path, visit, until_repaired=True):
            try:
                findings = verify(job.config)
            except StorageError:
                continue
        assert not all(finding.ok for finding in findings), (step, path)
