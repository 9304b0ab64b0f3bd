"""The timeline of a job's page: what restores and promotions leave behind, and a drawing that stays small."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.charts import Span, arrows
from headrace.cli.job_facts import JobFacts, undone_by
from headrace.cli.timeline import timeline
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from tests.unit.cli.written_page import Page
from tests.unit.support.demo_job import HOUR, START

STEPS = st.lists(st.tuples(st.sampled_from(["batch", "savepoint", "restore", "promotion"]), st.integers(0, 99)))


def committed(number, kind, parent, *, brought=False, **facts):
    facts = {"committed_at": START + number * HOUR, "run_id": f"run-{number // 3}", **facts}
    return Checkpoint(
        checkpoint_id=number,
        kind=Kind(kind),
        attempt_id="a",
        max_parallelism=8,
        incarnation=1,
        parent_id=parent,
        versions={} if brought else {"keyed_state": number},
        **facts,
    )


def log_of(steps):
    """Return checkpoints, the ids of the lineage of the last one, and by id what left others behind, all by hand."""
    checkpoints, lines, left = [committed(0, "initial", None)], {0: [0]}, {}
    for kind, place in steps:
        line, number = lines[checkpoints[-1].checkpoint_id], checkpoints[-1].checkpoint_id + 1
        if kind == "restore":
            kept = [own.checkpoint_id for own in checkpoints if own.has_state]
            kept = kept[place % len(kept)]
            checkpoints.append(committed(number, kind, line[-1], restored_from=kept))
            lines[number] = [*lines[kept], number]
        elif kind == "promotion":
            states = [own for own in line if checkpoints[own].has_state]
            fork = states[place % len(states)]
            checkpoints.append(committed(number, "batch", fork, brought=True))
            number += 1
            facts = {"restored_from": fork, "name": f"branch {number}"}
            checkpoints.append(committed(number, kind, number - 1, **facts))
            lines[number] = [*line[: line.index(fork) + 1], number - 1, number]
        else:
            checkpoints.append(committed(number, kind, line[-1]))
            lines[number] = [*line, number]
        left |= dict.fromkeys({*line}.difference(lines[number]), number)
    return checkpoints, lines[checkpoints[-1].checkpoint_id], left


@given(STEPS)
def test_undone_checkpoints_name_their_restore_or_promotion(steps):
    checkpoints, live, left = log_of(steps)
    undone = undone_by(checkpoints, Lineage(checkpoints))
    expected = {number: by for number, by in left.items() if number not in live}
    assert {number: by.checkpoint_id for number, by in undone.items()} == expected
    assert {*undone} == {checkpoint.checkpoint_id for checkpoint in checkpoints} - {*live}


def drawn(checkpoints):
    lineage = Lineage(checkpoints)
    config = SimpleNamespace(branch="b", job="demo")
    facts = JobFacts(
        config, None, checkpoints[-1], checkpoints, lineage.checkpoints, lineage, undone_by(checkpoints, lineage)
    )
    return timeline(facts)


@given(STEPS)
def test_bars_stand_for_all_checkpoints(steps):
    checkpoints, *_ = log_of(steps)
    titles = dict.fromkeys(re.findall(r'<rect [^>]*class="(?:f0|undone)"><title>([^<]*)<', drawn(checkpoints)))
    counts = [re.match(r"(\d+) checkpoints, |checkpoint ", text)[1] or 1 for text in titles]
    assert sum(map(int, counts)) == len(checkpoints)


@pytest.mark.parametrize("size", [5, 50, 10_000])
def test_drawing_of_any_length_is_small(size):
    steps = [("restore" if at % 40 == 39 else "savepoint" if at % 10 == 0 else "batch", at - 5) for at in range(size)]
    checkpoints, *_ = log_of(steps)
    assert len(drawn(checkpoints)) < 250_000


def test_checkpoints_of_one_moment_are_drawn():
    checkpoints = [committed(0, "initial", None, committed_at=START), committed(1, "batch", 0, committed_at=START)]
    shown = Page(drawn(checkpoints))
    assert [rect["x"] for rect in shown.named("rect")] == ["0.08%"]
    assert Page(drawn(checkpoints[:1])).named("rect")


def test_stretches_that_meet_lie_on_levels():
    spans = [Span(0.1, 0.5, "a"), Span(0.2, 0.6, "b"), Span(0.7, 0.9, "c")]
    shown = Page("".join(arrows("restores", spans, 0).parts))
    levels = [line["y1"] for line in shown.named("line") if line["y1"] == line["y2"]]
    assert levels[0] == levels[2] != levels[1]
