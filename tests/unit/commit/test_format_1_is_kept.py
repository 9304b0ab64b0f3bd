"""A job that the first wheel with stored format 1 left goes on under this code; `make_format_1.py` made its folder."""

from __future__ import annotations

import json
import tarfile

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.commit.branch_code import on_branch
from headrace.local.runner import run
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import FORMAT_VERSION
from tests.jobs.asking import Service
from tests.jobs.home import PURCHASES, Home, merged
from tests.jobs.local_runs import HERE
from tests.jobs.outcome import LIVE, checkpoints, live_rows, values_of
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand
from tests.unit.commit.make_format_1 import ARCHIVE, BRANCH, DOWN_FROM
from tests.unit.commit.make_format_1 import HOME as MADE_IN

pytestmark = pytest.mark.delta

DAYS = range(3)
TAKEN_IN = 2
READING = (
    ("verify", "purchases"),
    ("status", "purchases"),
    ("checkpoints",),
    ("waiting", "purchases"),
    ("state", "list"),
    ("state", "scan", "--state", "spent"),
    ("sql", "purchases", "select * from lines_by_item"),
    ("quarantine", "purchases"),
    ("branch", "list", "purchases"),
    ("branch", "diff", "purchases", BRANCH),
)
"""Commands that read what the old wheel wrote."""


def home_in(folder):
    service = Service(folder / "oracle")
    job = {"pipeline": "tests.jobs.asking:ordered", "services": {"oracle": {"url": service.url}}}
    home = Home(folder, merged(PURCHASES, job))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    return home


def run_once(config):
    return run(config, RunOptions(run_id="test"), lambda _: None, rows_worth_workers=HERE)


def content(config):
    """Return live rows of state and rows of sinks. Those of a branch lie in part in the job."""
    last = checkpoints(config)[-1]
    tables = {
        name: [
            row for row in JobFolder.of(config).view(name, last.versions[name]).live_rows() if not expired(row, last)
        ]
        for name in LIVE
    }
    for name, sink in config.sinks.items():
        snapshot = Storage(sink.table_path).table().latest()
        tables[name] = snapshot.read(snapshot.schema).to_pylist()
    return {name: sorted(map(without_places, rows), key=repr) for name, rows in tables.items()}


def expired(row, at):
    """Whether an entry may be removed: when that happens depends on the way of running."""
    return row.get("expires_at") is not None and row["expires_at"] <= at.watermark


def without_places(row):
    return {column: value for column, value in row.items() if column not in {"checkpoint_id", "last_access"}}


@pytest.fixture
def old(tmp_path):
    """Return the home of the job as the old wheel left it, in another folder."""
    home = home_in(tmp_path / "old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home.folder, filter="data")
    for log in home.folder.glob("state/**/_delta_log/*.json"):
        log.write_text(log.read_text().replace(str(MADE_IN), str(home.folder)))
    return home


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What a run of all days leaves whose service is always up."""
    home = home_in(tmp_path_factory.mktemp("straight"))
    write_days(home.input, DAYS)
    assert run_once(home.config()).stopped_because == "drained"
    return content(home.config())


def test_archive_has_all_kinds_of_state(old):
    last = checkpoints(old.config())[-1]
    kinds = ("timers", "async_requests", "materializer_history", "quarantine")
    assert all(live_rows(old.config(), last, table) for table in kinds)
    assert values_of(old.config(), "basket")
    assert last.work.pending == DOWN_FROM % 100
    assert {checkpoint.format_version for checkpoint in checkpoints(old.config())} == {FORMAT_VERSION} == {1}


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_commands_read_the_old_job(old, command, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(old.folder))
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("branch", [None, BRANCH])
def test_old_job_goes_on_as_a_straight_run(old, branch, straight):
    """The service is up again: what waited goes on, and another day comes."""
    write_days(old.input, DAYS[TAKEN_IN:])
    config = old.config() if branch is None else on_branch(old.config(), branch)
    before = checkpoints(config)[-1].checkpoint_id
    assert run_once(config).stopped_because == "drained"
    assert checkpoints(config)[-1].checkpoint_id > before
    assert content(config) == straight
    if branch is None:
        assert_as_by_hand(config, by_hand(map(purchases_of, DAYS)))
