"""The commands that pages run in the project of `headrace new shop`: each prints what its page shows (no JVM)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import invalidate_caches

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.plan.loader import load_pipeline, plan_of
from headrace.storage import pandas as late_pandas
from tests.jobs.home import PROJECT
from tests.unit.support.doc_pages import blocks_of, calls_of, shows

pytestmark = pytest.mark.slow


SECOND_LOOK = "a second look at the days after the first one, with the code of today"


class Shop:
    """The project, and calls of `headrace` in it as if each were a process."""

    def __init__(self, folder):
        self.folder = folder

    def call(self, command):
        """Run a command; return the exit code and what it prints."""
        forget_modules()
        words = shlex.split(command, comments=True)[1:]
        if words[0] in {"run", "backfill"} and not {"--dry-run", "--runner"} & {*words}:
            words += ["--runner", "local"]
        result = CliRunner().invoke(app, words)
        return result.exit_code, result.stdout + (result.stderr if result.exit_code else "")

    def edit(self, file, *replaced):
        """Replace texts in a file of the project."""
        path = self.folder / file
        content = path.read_text()
        for old, new in replaced:
            assert old in content
            content = content.replace(old, new)
        path.write_text(content)

    def check(self, calls, exit_codes=(0,)):
        """Run commands of a page, and compare what they print with what the page shows."""
        for command, shown in calls:
            exit_code, printed = self.call(command)
            assert exit_code in exit_codes, printed
            assert shows(shown, printed), f"$ {command}\n{printed}"


def forget_modules():
    """Forget the code of the project, which the next call imports again."""
    load_pipeline.cache_clear()
    plan_of.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipelines"]:
        del sys.modules[name]
    invalidate_caches()


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """Let the project's package `pipelines` take the place of this repository's, until the test ends."""
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "modules", sys.modules)
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "pipelines"}
    yield
    forget_modules()
    sys.modules.update(before)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A new project, in which no run was made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert CliRunner().invoke(app, ["new", "shop"]).exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    return Shop(tmp_path / "shop")


@pytest.fixture
def ran(shop):
    """The project after one run."""
    assert shop.call("headrace run")[0] == 0
    return shop


@pytest.mark.slow
def test_quickstart_changes_and_restores_the_job(shop):
    calls = dict(calls_of("quickstart", "headrace check"))
    assert shop.call("headrace run")[0] == 0
    shop.check([(command, shown) for command, shown in calls.items() if command.startswith("headrace sql")])
    shop.edit("pipelines/shop.py", ("SILENCE = 24 *", "SILENCE = 2 *"))
    assert project_tests_pass(shop.folder)
    for command, shown in calls_of("quickstart", "pytest"):
        if command.startswith(("headrace restore", "headrace sql")):
            shop.check([(command, shown)])
        elif command.startswith("headrace"):
            assert shop.call(command)[0] == 0


def project_tests_pass(folder):
    """Run the tests of the project as its user does."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "engine")}
    command = [sys.executable, "-m", "pytest", "-q"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_correcting_page_corrects_a_key(ran):
    page = "correcting-state"
    for first in ("why", "state set shop c07 --field orders=29 --field spent=570.00\n"):
        ran.check(calls_of(page, f"headrace {first}"))
    ran.check(calls_of(page, "headrace state set shop c07 --field orders=29 --field spent=570.00 --apply"))
    code, printed = ran.call("headrace state set-timer shop c07 2026-04-01T00:00Z --operator totals")
    assert (code, "2026-04-01T00:00:00Z" in printed, "Nothing was changed" in printed) == (0, True, True)


@pytest.mark.slow
def test_tutorial_runs_from_start_to_change(shop, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    files = iter(["pipelines/best.py", "conf/jobs/best.yaml", "tests/test_best.py", "conf/jobs/best.yaml", None])
    for block in blocks_of("tutorial"):
        if block.language in {"python", "yaml"}:
            follow_tutorial(shop, next(files), block.text)
        for command, shown in block.calls:
            if command.startswith("pytest"):
                assert project_tests_pass(shop.folder)
            else:
                shop.check([(command, shown)])


def follow_tutorial(shop, name, code):
    """Write code of the tutorial into a file, after what it has; without a name, change rule and test as the page says."""
    if name is not None:
        with (shop.folder / name).open("a") as file:
            file.write(code)
        return
    shop.edit("pipelines/best.py", ("pipeline = (", f"{code}\n\npipeline = ("), (".key_by", ".filter(is_large).key_by"))
    assert not project_tests_pass(shop.folder)
    shop.edit("tests/test_best.py", ('Best("anna", 3', 'Best("anna", 2'))
    assert project_tests_pass(shop.folder)


@pytest.mark.slow
def test_report_page_writes_a_page(ran):
    ((command, shown),) = calls_of("report", "headrace report")
    exit_code, printed = ran.call(command)
    assert exit_code == 0
    assert re.fullmatch(r"shop.html: [\d,]+ bytes", shown.strip())
    assert re.fullmatch(r"shop.html: [\d,]+ bytes", printed.strip())
    assert "sink customers" in (ran.folder / "shop.html").read_text()


@pytest.mark.slow
def test_branch_page_creates_a_branch(shop):
    shop.call("headrace run --max-batches 1")
    shop.check(calls_of("branches", 'headrace branch create shop try_it --at 0 --why "another rule"'))


@pytest.mark.slow
def test_branch_page_draws_the_lines(shop, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in (
        "headrace run --budget 0s",
        'headrace branch create shop try_it --at 0 --why "another rule"',
        "headrace run shop --branch try_it",
        "headrace run",
        f'headrace branch create shop second --at 1 --why "{SECOND_LOOK}"',
        "headrace savepoint shop sp --why before",
        'headrace restore shop --to 0 --why "wrong input" --yes',
    ):
        exit_code, printed = shop.call(command)
        assert exit_code == 0, printed
    shop.check(calls_of("branches", "headrace checkpoints"))


@pytest.mark.slow
def test_change_page_drops_an_operator(ran):
    ran.edit("pipelines/shop.py", ('.process("totals"', '.process("sums"'))
    ran.check(calls_of("changing-jobs", "headrace state drop"))


@pytest.mark.slow
def test_change_page_renames_an_operator(ran):
    ran.edit("pipelines/shop.py", ('.process("totals"', '.process("by_customer"'))
    ran.check(calls_of("changing-jobs", "headrace state rename"))


@pytest.mark.slow
def test_change_page_rescales_the_job(ran):
    ran.check(calls_of("changing-jobs", "headrace rescale"))


@pytest.mark.slow
def test_change_page_drops_the_job(ran):
    for command, shown in calls_of("changing-jobs", "headrace drop"):
        exit_code, printed = ran.call(command)
        assert exit_code == 0
        assert shows(re.sub(r"[\d,]+", "0", shown), re.sub(r"[\d,]+", "0", printed))


def test_cluster_page_runs_without_a_jvm(shop):
    shop.check(calls_of("running-on-a-cluster", "headrace run shop --runner local\n2026"))


def test_local_runner_refuses_topics(shop):
    topic = "format: kafka\n    servers: broker:9092\n    topic: vouchers\n    "
    shop.edit("conf/jobs/shop.yaml", ("  vouchers:\n    ", f"  vouchers:\n    {topic}"))
    code, printed = shop.call("headrace run shop --runner local")
    assert (code, "needs Spark, and the local runner starts none" in printed) == (2, True)


def test_cluster_page_checks_another_profile(shop):
    (profile,) = [block.text for block in blocks_of("running-on-a-cluster") if block.text.startswith("runner: local")]
    (shop.folder / "conf/clusters/laptop.yaml").write_text(profile)
    code, printed = shop.call("headrace check --cluster laptop")
    assert (code, "local, as cluster laptop says" in printed) == (0, True)
