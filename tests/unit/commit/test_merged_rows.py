"""Rows that another program has added to a merge sink: `verify` names them, and the way back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.commit.branch_code import on_branch
from headrace.commit.verify import verify
from headrace.edits.fork import fork
from headrace.edits.restore import restore
from headrace.storage.storage import Storage
from tests.unit.support.branched_job import BranchedJob

CHECK = "sink totals has one row a key"


@pytest.fixture
def job():
    job = BranchedJob()
    job.feed(("ann", 1), ("bob", 2))
    job.run()
    return job


def append_twice(config, customer):
    """Append two rows of one key to the sink, as another program does."""
    store = Storage(config.sinks["totals"].table_path).table()
    latest = store.latest()
    rows = latest.read(latest.schema).slice(0, 1)
    place = rows.schema.get_field_index("customer")
    rows = rows.set_column(
        place, rows.schema.field("customer"), pa.array([customer], rows.schema.field("customer").type)
    )
    store.append_rows(latest.version, pa.concat_tables([rows, rows]))


def failed(config):
    return {finding.check: finding.detail for finding in verify(config) if not finding.ok}


@pytest.mark.slow
def test_added_rows_are_named_with_the_way_back(job):
    append_twice(job.config, "cyd")
    assert failed(job.config) == {
        CHECK: "4 rows, 3 keys: several rows have customer=cyd. Another program has written to the table since checkpoint 1. This takes the "
        'sink back to what the job had published by then: headrace restore shop --to 1 --why "..."'
    }
    restore(job.config, 1, "as printed", "somebody")
    assert failed(job.config) == {}


@pytest.mark.slow
def test_way_back_goes_before_the_added_rows(job):
    append_twice(job.config, "cyd")
    job.feed(("dee", 3))
    job.run()
    (problem,) = failed(job.config).values()
    assert problem.endswith(
        'had published by then; the next run takes in what came since again: headrace restore shop --to 1 --why "..."'
    )
    restore(job.config, 1, "as printed", "somebody")
    assert failed(job.config) == {}


@pytest.mark.slow
def test_sink_of_a_branch_names_the_branch(job):
    fork(job.config, "other", None, "somebody")
    job.feed(("dee", 3))
    job.run("other")
    append_twice(on_branch(job.config, "other"), "eve")
    (problem,) = failed(on_branch(job.config, "other")).values()
    assert "headrace restore shop --branch other --to " in problem


@pytest.mark.slow
def test_many_added_keys_are_counted(job):
    for name in "pqrst":
        append_twice(job.config, name)
    assert " and 2 more keys." in failed(job.config)[CHECK]
