"""The local runner and Spark write the same tables, and one can continue a job of the other."""

from __future__ import annotations

import random

import pytest

from tests.jobs.graphs import Program, job_of
from tests.jobs.home import Home
from tests.jobs.local_runs import HERE, IN_WORKERS, LocalRuns
from tests.jobs.outcome import assert_well_formed, outcome
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand
from tests.spark.test_random_graphs import feed

DAYS = range(4)
GRAPHS = (5, 37)
"""Together they have union, connect, process and flat_map."""


@pytest.mark.slow
def test_runners_take_turns_on_one_job(home, new_home, run):
    for at in (home, alone := new_home("alone")):
        write_days(at.input, DAYS)
        at.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    for runner in (run, LocalRuns(HERE), LocalRuns(IN_WORKERS), run):
        runner(home, parallelism=2, max_batches=1)
    LocalRuns()(alone, parallelism=3)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, DAYS)))
    assert outcome(home.config()) == outcome(alone.config())
    assert_well_formed(home.config())


@pytest.mark.parametrize("seed", GRAPHS)
def test_graph_without_spark_gives_same_results(seed, tmp_path, run):
    program, chance = Program(seed), random.Random(seed)
    homes = [(run, Home(tmp_path / "spark", job_of(program))), (LocalRuns(), Home(tmp_path / "local", job_of(program)))]
    for runner, home in homes:
        for number in range(max(len(source.files) for source in program.inputs)):
            feed(home, program, number)
        runner(home, parallelism=chance.choice([1, 2, 3]), end_of_input=True)
    (_, on_spark), (_, locally) = homes
    assert outcome(locally.config()) == outcome(on_spark.config())
