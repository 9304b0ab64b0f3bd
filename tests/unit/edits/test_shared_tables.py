"""Any sequence of commands of three jobs over two tables: a table only ever has rows of its one owner (in memory)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.commit.branch_code import on_branch
from headrace.edits.drop_job import drop_job
from headrace.edits.fork import fork
from headrace.edits.promote import promoting
from headrace.edits.reconcile import reconcile
from headrace.edits.restore import restore
from headrace.edits.sink_owners import take_over
from headrace.errors import ConfigError, HeadraceError, SinkMismatchError
from headrace.testing._memory_disk import forget_disk
from tests.unit.edits.shared_tables import Sharer, customers_at, delete, lake_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.memory_job import BOARD

DISK = "shared"
TABLES = ("t", "u")
JOBS = ("a", "b", "c")
ACTS = (
    "run",
    "run",
    "run",
    "restore",
    "drop",
    "drop_with_sinks",
    "rebind",
    "take_over",
    "reconcile",
    "promote",
    "delete",
)


class Owners:
    """A plain model: who owns each table, and whose tables are as their jobs left them."""

    def __init__(self):
        self.jobs = {name: Sharer(DISK, name, TABLES[0]) for name in JOBS}
        self.owners = {}
        self.settled = dict.fromkeys(JOBS, True)
        self.has_rows = set()

    def identity(self, job):
        return job.name, job.life

    def is_refused(self, job):
        return self.owners.get(job.table, self.identity(job)) != self.identity(job)

    def own(self, job):
        former = self.owners.get(job.table)
        if former is not None and former != self.identity(job):
            self.unsettle(former[0])
        self.owners[job.table] = self.identity(job)

    def unsettle(self, name):
        if self.identity(self.jobs[name]) in self.has_rows:
            self.settled[name] = False

    def run(self, job):
        self.own(job)
        self.has_rows.add(self.identity(job))
        self.settled[job.name] = True

    def act(self, name, what, table):
        """Act on the tables. Check what must be refused, and what must not be."""
        job = self.jobs[name]
        if what == "rebind":
            if job.table != table:
                job.table = table
                self.unsettle(name)
        elif what == "delete":
            owner = self.owners.pop(table, None)
            delete(f"memory://{DISK}/lake/{table}")
            if owner is not None and self.jobs[owner[0]].life == owner[1]:
                self.unsettle(owner[0])
        else:
            getattr(self, f"_{what}")(job)

    def _run(self, job):
        if not self._refused(job, job.run):
            self.run(job)

    def _refused(self, job, command):
        """Run a command; return whether it was refused, as it must be for a table of another job."""
        before = lake_of(DISK)
        if self.is_refused(job):
            with pytest.raises((SinkMismatchError, ConfigError)):
                command()
            assert lake_of(DISK) == before
            return True
        with suppress(*([] if self.settled[job.name] else [HeadraceError])):
            command()
            self.own(job)
            return False
        assert lake_of(DISK) == before
        return True

    def _restore(self, job):
        if job.log.last is None:
            return
        if not self._refused(job, lambda: restore(job.config, 0, "", "somebody")):
            assert customers_at(job.path) == []

    def _reconcile(self, job):
        if job.log.last is None:
            return
        if not self._refused(job, lambda: reconcile(job.config, "somebody", "")):
            self.settled[job.name] = True

    def _drop(self, job):
        if job.log.exists:
            drop_job(job.config, "", "somebody")
            self._begin_anew(job)

    def _drop_with_sinks(self, job):
        before = lake_of(DISK)
        if not job.log.exists:
            return
        if self.is_refused(job):
            with pytest.raises(SinkMismatchError):
                drop_job(job.config, "", "somebody", sinks=True)
            assert lake_of(DISK) == before
            return
        drop_job(job.config, "", "somebody", sinks=True)
        assert customers_at(job.path) is None
        self.owners.pop(job.table, None)
        self._begin_anew(job)

    def _begin_anew(self, job):
        job.life += 1
        self.settled[job.name] = True

    def _take_over(self, job):
        if not self.is_refused(job):
            before = lake_of(DISK)
            with pytest.raises(ConfigError, match="nothing to take over"):
                take_over(job.config, BOARD, "", "somebody")
            assert lake_of(DISK) == before
            return
        take_over(job.config, BOARD, "", "somebody")
        self.own(job)
        self.unsettle(job.name)
        assert customers_at(job.path) == []

    def _promote(self, job):
        if job.log.last is None or self.is_refused(job) or not self.settled[job.name]:
            return
        if self._refused(job, lambda: restore(job.config, job.log.last.checkpoint_id, "", "somebody")):
            return  # brings a missing sink back
        fork(job.config, "trial", None, "somebody")
        on_trial = on_branch(job.config, "trial")
        before = lake_of(DISK)
        customer = job.run(on_trial)
        assert lake_of(DISK) == before
        with promoting(job.config, "trial", "somebody") as promotion:
            promotion.promote("", allow_other_code=True)
        self.run(job)
        assert customer in customers_at(job.path)

    def check(self):
        """Check that each table has rows of its owner alone."""
        for table in TABLES:
            customers, owner = customers_at(f"memory://{DISK}/lake/{table}"), self.owners.get(table)
            assert (customers is None) == (owner is None) or not customers
            for customer in customers or ():
                assert customer.startswith(f"{owner[0]}{owner[1]}-")


@pytest.mark.slow
@examples(40)
@given(acts=st.lists(st.tuples(st.sampled_from(JOBS), st.sampled_from(ACTS), st.sampled_from(TABLES)), max_size=12))
def test_table_has_rows_of_one_owner(clock, acts):
    forget_disk(DISK)
    owners = Owners()
    for job, what, table in acts:
        owners.act(job, what, table)
        owners.check()
    forget_disk(DISK)
