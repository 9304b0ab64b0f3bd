"""Advice for a branch whose job was rescaled or renamed since it began."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.commit.branch_code import on_branch
from headrace.commit.protocol import check_key_groups
from headrace.edits.edit import apply
from headrace.edits.fork import fork
from headrace.edits.rescale import Rescale
from headrace.errors import ConfigError
from tests.unit.support.branched_job import BranchedJob


def test_branch_of_rescaled_job_begins_again():
    job = BranchedJob()
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    config = on_branch(replace(job.config, max_parallelism=7), "other")
    with pytest.raises(ConfigError, match="cannot go on beside a job that was rescaled") as refusal:
        check_key_groups(config, job.last("other"))
    name = job.config.job
    assert f"headrace branch drop {name} other, then headrace branch create {name} other" in str(refusal.value)
    assert "Write max_parallelism" not in str(refusal.value)
