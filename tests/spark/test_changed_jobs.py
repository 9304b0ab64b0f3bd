"""Jobs that change between runs: another number of key groups, a renamed operator, a removed operator."""

from __future__ import annotations

import pytest

from headrace.commit.verify import verify
from headrace.edits.edit import apply
from headrace.edits.operators import DropOperator, RenameOperator
from headrace.edits.rescale import Rescale
from headrace.errors import StateSchemaError
from headrace.run.batch_sequence import BatchSequence
from headrace.tables.folder import JobFolder
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

FEW = {"execution": {"async-state": {"in-flight-records-limit": 20}}}
RENAMED = {"pipeline": "tests.jobs.purchases:renamed"}
OLD, NEW = "customers", "clients"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", pytest.param("delta", marks=pytest.mark.long)])
def test_rescaled_job_equals_job_started_at_that_scale(home, new_home, run, monkeypatch, backend):
    write_days(home.input, range(3), rows=60)
    one_file = {"sources": {"purchases": {"max_files_per_batch": 1}}}
    home.configure({**FEW, **one_file})
    run(home, backend=backend, max_batches=1)
    with monkeypatch.context() as patched:  # records are held while the number changes
        patched.setattr(BatchSequence, "stop_at", lambda _: 0)
        run(home, backend=backend, max_batches=1)
    assert checkpoints(home.config())[-1].work.held
    apply(home.config(), Rescale(7, "few keys"), "somebody")
    home.configure({**FEW, **one_file, "max_parallelism": 7})
    run(home, backend=backend, parallelism=3)
    straight = new_home("straight")
    write_days(straight.input, range(3), rows=60)
    straight.configure({**one_file, "max_parallelism": 7})
    run(straight)
    assert outcome(home.config()) == outcome(straight.config())
    assert_well_formed(home.config())
    assert all(finding.ok for finding in verify(home.config()))


def test_renamed_operator_keeps_its_state(home, run):
    write_days(home.input, range(2), rows=60)
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    run(home, max_batches=1)
    home.configure(RENAMED)
    with pytest.raises(StateSchemaError, match="headrace state rename purchases"):
        run(home)
    apply(home.config(), RenameOperator(OLD, NEW), "somebody")
    run(home)
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=60) for day in range(2)))


@pytest.mark.slow
@pytest.mark.parametrize(("code", "dropped"), [("renamed", {OLD}), ("anew", {OLD, "lines"})])
def test_run_continues_after_blocking_operators_were_dropped(home, run, monkeypatch, code, dropped):
    write_days(home.input, range(1), rows=60)
    home.configure(FEW)
    with monkeypatch.context() as patched:
        patched.setattr(BatchSequence, "stop_at", lambda _: 0)
        run(home, max_batches=1)
    config = home.config()
    assert operators_in(config, "buffered_requests") == {OLD, "lines"}
    home.configure({**FEW, "pipeline": f"tests.jobs.purchases:{code}"})
    for name in sorted(dropped):
        apply(home.config(), DropOperator(name, "begin anew"), "somebody")
    assert operators_in(config, "buffered_requests") == {OLD, "lines"} - dropped
    write_days(home.input, range(1, 2), rows=60)
    assert run(home).stopped_because == "drained"
    assert not checkpoints(config)[-1].work.held
    assert operators_in(config, "keyed_state") == {NEW}
    assert all(finding.ok for finding in verify(home.config()))


def operators_in(config, table):
    """The operators of which a table has live rows."""
    version = checkpoints(config)[-1].versions[table]
    return {*JobFolder(config.job_folder).view(table, version).live(["operator"])["operator"].to_pylist()}
