"""`headrace backfill` with the options of a scheduler: a branch name, a policy and a report."""

from __future__ import annotations

import json

import pytest

from headrace.log.branches import Branches
from headrace.log.checkpoint import Kind
from tests.unit.cli.test_backfill import ASKED, job

__all__ = ["job"]

OWN = f"{ASKED} --name replay --json"


@pytest.fixture
def answer_of(headrace, job, tmp_path):
    """Return a function that runs the command and returns its report, which equals the printed JSON."""

    def run(words, exit_code=0):
        file = tmp_path / "report.json"
        answer = headrace(f"{words} --report {file}")
        assert answer.exit_code == exit_code
        report = json.loads(file.read_text())
        assert exit_code or report == json.loads(answer.stdout)
        return report

    return run


@pytest.mark.slow
def test_option_overrides_the_promotion_policy(answer_of, job):
    report = answer_of(f"{OWN} --promote automatic")
    assert (report["outcome"], job.last().kind) == ("promoted", Kind.PROMOTION)


@pytest.mark.slow
def test_unknown_policy_is_refused(answer_of, job):
    report = answer_of(f"{OWN} --promote perhaps", 2)
    assert "'perhaps' is not allowed (allowed: automatic, approval, refuse)" in report["message"]
    assert not Branches(job.config).open


@pytest.mark.slow
def test_nothing_begins_without_an_open_branch(answer_of, job):
    before = job.last()
    assert answer_of(f"{OWN} --only-open --promote automatic")["outcome"] == "nothing_open"
    assert (job.last(), Branches(job.config).open) == (before, [])


@pytest.mark.slow
def test_open_branch_is_promoted(answer_of, job):
    first = answer_of(f"{OWN} --promote approval")
    assert (first["outcome"], first["from"], first["checkpoints"]) == ("needs_approval", "2019-12-02T00:00:00Z", [3, 4])
    assert answer_of(f"{OWN} --only-open --promote automatic")["outcome"] == "promoted"


@pytest.mark.slow
def test_renewal_is_in_the_plan(answer_of, headrace, job):
    answer_of(OWN)
    job.write(1, ("cyd", 5))
    assert "replay (anew)" in headrace(f"{ASKED} --name replay --renew --dry-run").stdout
    assert json.loads(headrace(f"{OWN} --renew --dry-run").stdout)["renews"] is True
    assert answer_of(f"{OWN} --renew")["outcome"] == "needs_approval"


@pytest.mark.slow
def test_refusal_is_in_the_report(answer_of, job):
    answer_of(OWN)
    job.write(1, ("cyd", 5))
    report = answer_of(OWN, 7)
    assert (report["error"], report["exit_code"]) == ("SourceError", 7)
