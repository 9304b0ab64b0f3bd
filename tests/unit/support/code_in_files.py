"""A job whose pipeline is in a file of its home, as those of users are."""

from __future__ import annotations

import sys

from msgspec.structs import replace

from headrace.plan.digests import loaded_code_digests
from headrace.plan.loader import load_pipeline, plan_of

MODULE = "code_in_files"
_CODE = "from code_in_files.rules import pipeline\n"
_RULES = "from tests.unit.support.branched_job import totals\n\npipeline = totals()\n"


def put_into_files(job):
    """Write the code of a job's pipeline to files, and let the job use it."""
    folder = job.harness.folder / MODULE
    folder.mkdir()
    (folder / "__init__.py").write_text(_CODE)
    (folder / "rules.py").write_text(_RULES)
    job.config = replace(job.config, pipeline=f"{MODULE}:pipeline")


def rules_of(job):
    """Return the file that a change of code writes to."""
    return job.harness.folder / MODULE / "rules.py"


def change_code(job, text="RATE = 2\n"):
    """Change the code; this process goes on with what it has loaded."""
    rules_of(job).write_text(_RULES + text)


def forget_code():
    """Forget what this process has loaded, as a new process does."""
    for cached in (load_pipeline, plan_of, loaded_code_digests):
        cached.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.endswith("/job")]
