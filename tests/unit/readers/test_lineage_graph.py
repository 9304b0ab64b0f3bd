"""The lines of a job: the predecessor of each checkpoint, over restores and forks."""

from __future__ import annotations

import pytest

from headrace import clock
from headrace.commit.branch_code import on_branch
from headrace.edits.fork import fork
from headrace.edits.restore import restore
from headrace.readers.graph import CheckpointName, lineage_graph
from tests.unit.support.branched_job import BranchedJob


@pytest.fixture
def job():
    result = BranchedJob()
    for customer in ("ann", "bob"):
        result.feed((customer, 1))
        result.run()
    return result


def edges(graph):
    return {node.name: node.before for node in graph.nodes}


def job_at(number):
    return CheckpointName(None, number)


def test_job_without_branches_is_a_single_line(job):
    graph = lineage_graph(job.config)
    assert [node.name for node in graph.nodes] == [job_at(2), job_at(1), job_at(0)]
    assert edges(graph) == {job_at(2): job_at(1), job_at(1): job_at(0), job_at(0): None}
    assert (graph.head, graph.has_forks) == (job_at(2), False)


@pytest.mark.slow
def test_line_of_branch_continues_from_fork(job):
    fork(job.config, "other", 1, "somebody")
    job.feed(("cyd", 1))
    job.run("other")
    graph = lineage_graph(job.config)
    assert edges(graph)[CheckpointName("other", 2)] == job_at(1)
    assert edges(graph)[CheckpointName("other", 3)] == CheckpointName("other", 2)
    assert CheckpointName("other", 1) not in edges(graph), "that is the job's"
    assert graph.has_forks
    assert graph.head == job_at(2)


@pytest.mark.slow
def test_graph_of_a_branch_leaves_others_out(job):
    fork(job.config, "other", 1, "somebody")
    fork(job.config, "third", 1, "somebody")
    graph = lineage_graph(on_branch(job.config, "other"))
    assert {node.name.lineage for node in graph.nodes} == {None, "other"}
    assert graph.head == CheckpointName("other", 2)


@pytest.mark.slow
def test_line_continues_from_the_restored_checkpoint(job):
    restore(job.config, 1, "wrong input", "somebody")
    graph = lineage_graph(job.config)
    assert edges(graph)[job_at(3)] == job_at(1)
    assert {node.name.checkpoint_id: node.on_line for node in graph.nodes} == {3: True, 2: False, 1: True, 0: True}


@pytest.mark.slow
def test_graph_order_ignores_the_clocks_of_checkpoints(job):
    with clock.installed(clock.VirtualClock(0)):
        fork(job.config, "other", 2, "somebody")
        restore(job.config, 1, "wrong input", "somebody")
    graph = lineage_graph(job.config)
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    assert all(node.before is None or places[node.name] < places[node.before] for node in graph.nodes)
