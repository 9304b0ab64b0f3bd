"""`headrace erase` and `savepoint --drop`, on a job with real Delta tables."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.commit.protocol import open_job
from headrace.edits.restore import savepoint
from headrace.storage import pandas as late_pandas
from headrace.tables.schemas import KEYED_STATE, QUARANTINE
from tests.jobs.home import Home
from tests.unit.support.erasure_job import bought, commit_rows, places_with, quarantined, rows_of_all_tables, state


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job with anna at checkpoints 2 to 4; 4 is the savepoint `before`."""
    home = Home(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(home.folder))
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    config = home.config()
    with open_job(config, "run", create=True) as opened:
        commit_rows(opened, rows_of_all_tables("bob", "bob"))
        raw = {QUARANTINE: [quarantined('{"customer":"anna"}')]}
        commit_rows(opened, rows_of_all_tables("anna", "anna") | raw, outputs=bought(opened, "anna"))
        commit_rows(opened, {KEYED_STATE: [state("order 1", '{"by":"anna"}')]})
    savepoint(config, "before", "", "run")
    return config


def headrace(*words):
    words = words[0].split() if len(words) == 1 else list(words)
    return CliRunner().invoke(app, words)


def applied(*more):
    return headrace("erase", "purchases", "anna", "--apply", "--why", "request 17", *more)


def last_checkpoint():
    return json.loads(headrace("checkpoints --json").output)["total"] - 1


@pytest.mark.slow
def test_dry_run_lists_the_rows_of_the_key(job):
    result = headrace("erase anna")
    assert result.exit_code == 0
    output = " ".join(result.output.split())
    for part in (
        'materializer_history lines "anna" 1 1',
        'keyed_state customers "order 1" 1 1',
        "checkpoints that need them: 2 to 4.",
        "headrace savepoint purchases before --drop --why ...",
        "it is a column's value in 1 row Spark SQL: DELETE FROM delta.`",
        "WHERE `customer` = 'anna';",
        "Nothing was changed. To erase it: headrace erase purchases anna --apply --why ...",
    ):
        assert part in output
    assert last_checkpoint() == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [(), ("--apply", "--why", "request 17"), ("--apply", "--purge", "--why", "request 17")]
)
def test_key_that_nothing_has_is_refused(job, more):
    assert headrace("savepoint purchases before --drop --why old").exit_code == 0
    result = headrace("erase", "purchases", "Anna ", *more)
    assert (result.exit_code, last_checkpoint()) == (2, 5)
    for part in (
        "no row has the key 'Anna ',",
        "Nothing was changed.",
        'There is "anna".',
        "'headrace state scan purchases' shows keys",
    ):
        assert part in result.stderr
    assert "The bytes are gone" not in result.output


@pytest.mark.slow
def test_refused_key_is_reported_as_json(job):
    result = headrace("erase purchases nobody --json")
    assert (result.exit_code, json.loads(result.stdout)["error"]) == (2, "ConfigError")


@pytest.mark.slow
def test_key_of_a_sink_alone_is_known(job):
    result = headrace("erase purchases anna --operator customers --apply --why x")
    assert result.exit_code == 0
    assert headrace("erase purchases anna --operator customers").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("erase purchases anna --apply", "--apply needs a reason"),
        ("erase purchases anna --purge", "it needs --apply"),
        ("erase purchases anna --apply --why anna", "the reason names the key"),
        ("erase purchases anna --apply --purge --why x", "rows of the key: 'before' (checkpoint 4)"),
        ("erase purchases anna --operator nobody", "has no operator 'nobody'"),
        ("erase purchases null", "cannot be erased"),
        ("savepoint purchases after --drop --why x", "there is no savepoint 'after'"),
    ],
)
def test_bad_calls_change_nothing(job, words, message):
    result = headrace(words)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert last_checkpoint() == 4


@pytest.mark.slow
def test_purge_leaves_nothing_behind(job):
    assert headrace("savepoint purchases before --drop --why old").exit_code == 0
    assert headrace("erase", "order 1", "--apply", "--purge", "--why", "request 17").exit_code == 0
    result = applied("--purge", "--mentions", "--json")
    done = json.loads(result.output)
    assert (result.exit_code, done["applied"], done["checkpoint"]) == (0, True, 8)
    assert done["left"] == {
        "files": [],
        "others": [],
        "notes": [],
        "checkpoints": [],
        "savepoints": [],
        "gone_after": None,
    }
    assert [(sink["sink"], sink["rows"]) for sink in done["sinks"]] == [("lines_by_item", 1), ("reminders", 0)]
    assert places_with(job, "anna") == set()
    assert [headrace(f"state get bob --at {at}").exit_code for at in (1, 2, 3, 8)] == [0, 8, 8, 0]


@pytest.mark.slow
def test_erasure_reports_the_remaining_mentions(job):
    result = applied()
    output = " ".join(result.output.split())
    assert "erased 7 rows, as checkpoint 5" in output
    assert "or at once with --purge: these checkpoints" in output
    assert applied().exit_code == 0
    assert last_checkpoint() == 5


@pytest.mark.slow
def test_restore_of_erased_key_needs_an_option(job):
    assert applied().exit_code == 0
    refused = headrace("restore purchases --to 2 --why x --yes")
    assert refused.exit_code == 2
    assert "headrace restore purchases --to 2 --bring-back-erased --why ..." in refused.stderr
    assert headrace("restore purchases --to 2 --why x --yes --bring-back-erased").exit_code == 0
