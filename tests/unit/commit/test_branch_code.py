"""A branch keeps digests of the code that it ran with: a promotion of other code is refused."""

from __future__ import annotations

import pytest

from headrace.commit.branch_code import code_differences, listed, on_branch, uncompared_code
from headrace.edits.fork import fork, log_of
from headrace.edits.promote import promoting
from headrace.errors import ConfigError
from headrace.log.branches import Branches
from tests.unit.support.branched_job import BranchedJob
from tests.unit.support.code_in_files import change_code, forget_code, put_into_files, rules_of

CHANGED = ["code_in_files/rules.py has changed"]


@pytest.fixture
def job():
    """Return a job with code in files, and a branch of it that ran."""
    job = BranchedJob()
    put_into_files(job)
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    job.feed(("ann", 5))
    job.run("other")
    yield job
    forget_code()


def recorded(job):
    return Branches(job.config).get("other")


def promote(job, **options):
    with promoting(job.config, "other", "promotion") as promotion:
        return promotion.promote(**options)


def test_run_of_a_branch_records_its_code(job):
    assert {"code_in_files/__init__.py", "code_in_files/rules.py"} <= recorded(job).code.keys()
    assert code_differences(job.config, recorded(job)) == []
    assert uncompared_code(job.config, recorded(job)) is None


@pytest.mark.slow
def test_same_code_in_another_process_is_promoted(job):
    forget_code()
    assert code_differences(job.config, recorded(job)) == []
    promote(job)


@pytest.mark.parametrize("restarted", [False, True])
def test_promotion_refuses_other_code(job, restarted):
    live = job.content()
    change_code(job)
    if restarted:
        forget_code()
    with pytest.raises(ConfigError, match=r"branch 'other' cannot be promoted: .*code_in_files/rules.py has changed"):
        promote(job)
    assert job.content() == live
    assert Branches(job.config).open == [recorded(job)]


@pytest.mark.slow
def test_other_code_is_promoted_on_request(job):
    expected = job.content("other")
    change_code(job)
    promote(job, allow_other_code=True)
    assert job.content() == expected


@pytest.mark.slow
def test_former_code_is_promoted(job):
    former = rules_of(job).read_text()
    change_code(job)
    assert code_differences(job.config, recorded(job)) == CHANGED
    rules_of(job).write_text(former)
    promote(job)


@pytest.mark.slow
def test_run_records_the_code_that_it_loaded(job):
    before = recorded(job).code
    change_code(job)
    job.feed(("bob", 2))
    job.run("other")  # the process has the code of its start
    assert recorded(job).code == before
    forget_code()
    job.run("other")
    assert code_differences(job.config, recorded(job)) == []
    assert (
        code_differences(job.config, recorded(job), log_of(on_branch(job.config, "other")).lineage.checkpoints)
        == CHANGED
    ), "its results are of the former code"


def test_new_and_lost_modules_are_differences(job):
    (rules_of(job).with_name("rates.py")).write_text("RATE = 2\n")
    change_code(job, "from code_in_files.rates import RATE\n")
    assert code_differences(job.config, recorded(job)) == ["code_in_files/rates.py is new", *CHANGED]
    rules_of(job).unlink()
    assert "code_in_files/rules.py is gone" in code_differences(job.config, recorded(job))


@pytest.mark.slow
def test_code_outside_of_files_is_not_compared():
    job = BranchedJob()
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    assert "was never run" in uncompared_code(job.config, recorded(job))
    job.run("other")
    assert recorded(job).code is None
    assert code_differences(job.config, recorded(job)) == []
    assert "the code was not compared" in uncompared_code(job.config, recorded(job))
    promote(job)


@pytest.mark.slow
def test_lost_code_is_not_compared(job):
    for file in rules_of(job).parent.iterdir():
        if file.is_file():
            file.unlink()
    rules_of(job).parent.joinpath("__init__.py").unlink(missing_ok=True)
    forget_code()
    assert code_differences(job.config, recorded(job)) == []
    assert "no file on this machine" in uncompared_code(job.config, recorded(job))


def test_long_list_of_differences_is_cut():
    assert listed(["a", "b"]) == "a; b"
    assert listed([*"abcdefg"]) == "a; b; c; d; e; and 2 more"
