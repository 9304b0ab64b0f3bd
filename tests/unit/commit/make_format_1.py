"""Make `format_1.tar.xz`: the folder of a job as the first wheel with stored format 1 left it.

    python tests/unit/commit/make_format_1.py

Builds the wheel of `COMMIT`, installs it into a temporary folder, and runs the job `asking` of that commit with it: two days of
purchases, of which the second day waits half for a service that is down, and a branch that took in the second day whole. The
job's clock shows 2024, so that what waits is due wherever the folder is read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

COMMIT = "9e8c1e43"
"""The merge of the last part of the redesign after which the stored format is kept."""

PROJECT = Path(__file__).resolve().parents[3]
ARCHIVE = Path(__file__).with_name("format_1.tar.xz")
KEPT = ("input", "lake", "state")
HOME = Path("/tmp/headrace-format-1")  # noqa: S108 - no secret lies there
"""Where the job ran: sinks of its branch name their bases by whole paths."""

BRANCH = "try_it"
DOWN_FROM = 1_000_045
EARLIER = 1_711_929_600_000
"""When the job ran (ms): 2024-04-01."""


def main() -> None:
    """Build, install, run, and pack."""
    with tempfile.TemporaryDirectory() as folder:
        source, installed = Path(folder, "source"), Path(folder, "installed")
        source.mkdir()
        content = subprocess.run(["git", "archive", COMMIT], cwd=PROJECT, check=True, capture_output=True)
        subprocess.run(["tar", "x"], cwd=source, input=content.stdout, check=True)
        _python("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source, HEADRACE_PURE_PYTHON="1")
        (wheel,) = Path(folder).glob("*.whl")
        _python("-m", "uv", "pip", "install", "--no-deps", "--target", str(installed), str(wheel), cwd=source)
        path = os.pathsep.join((str(installed), str(source)))
        HOME.mkdir()
        _python(__file__, str(HOME), cwd=source, PYTHONPATH=path, HEADRACE_PURE_PYTHON="1")
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            for name in KEPT:
                archive.add(HOME / name, name, filter=_of_nobody)
        shutil.rmtree(HOME)


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _python(*arguments: str, cwd: Path, **variables: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=cwd, env={**os.environ, **variables}, check=True)


def run_the_job(folder: Path) -> None:
    """Run the job with the package that is installed, and the tests of its commit."""
    import headrace
    from headrace import clock
    from headrace.commit.branch_code import on_branch
    from headrace.edits.fork import fork
    from headrace.local.runner import run
    from headrace.run.options import RunOptions
    from tests.jobs.asking import Service
    from tests.jobs.home import PURCHASES, Home, merged
    from tests.jobs.purchase_files import write_days

    assert "installed" in headrace.__file__
    late = clock.now() - EARLIER

    class Earlier(clock.SystemClock):
        def now(self) -> int:
            return super().now() - late

    clock.use(Earlier())
    service = Service(folder / "oracle")
    job = {"pipeline": "tests.jobs.asking:ordered", "services": {"oracle": {"url": service.url}}}
    home = Home(folder, merged(PURCHASES, job))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    write_days(home.input, [0])
    run(home.config(), RunOptions(run_id="first"), print, rows_worth_workers=sys.maxsize)
    write_days(home.input, [1])
    fork(home.config(), BRANCH, None, run_id="fork")
    run(on_branch(home.config(), BRANCH), RunOptions(run_id="branch"), print, rows_worth_workers=sys.maxsize)
    service.goes_down(DOWN_FROM)
    run(home.config(), RunOptions(run_id="second"), print, rows_worth_workers=sys.maxsize)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_the_job(Path(sys.argv[1]))
    else:
        main()
