"""`headrace branch ...`, and --branch of other commands."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from headrace.cli.branch import with_options
from headrace.commit.restore_check import RestoreCheck
from headrace.config import load_job
from headrace.edits.compact import compact
from headrace.edits.fork import fork
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, StorageError
from tests.unit.support.branched_job import BranchedJob
from tests.unit.support.purchase_job import after_retention


@pytest.fixture
def job(headrace, monkeypatch):
    result = BranchedJob()
    result.feed(("ann", 1), ("bob", 2))
    result.run()
    monkeypatch.setenv("HEADRACE_HOME", str(result.harness.folder))
    return result


@pytest.fixture
def forked(headrace, job):
    return headrace("branch", "create", "shop", "try_it", "--why", "another rule")


@pytest.mark.slow
def test_fork_prints_the_next_commands(forked):
    assert "branch 'try_it' begins at checkpoint 1 of job 'shop'; nothing was copied" in forked.stdout
    assert "headrace run shop --branch try_it" in forked.stdout


@pytest.mark.slow
def test_branches_are_listed(headrace, forked):
    row = json.loads(headrace("branch list shop --json").stdout)["branches"][0]
    assert (row["name"], row["fork_id"], row["last"], row["note"]) == ("try_it", 1, 2, "another rule")
    assert "another rule" in headrace("branch list shop").stdout


@pytest.mark.slow
def test_reading_commands_accept_a_branch_option(headrace, job, forked):
    job.feed(("cyd", 7))
    job.run("try_it")
    query = ("sql", "shop", "select customer from totals order by 1", "--json")

    def customers(*branch):
        return [row["customer"] for row in json.loads(headrace(*query, *branch).stdout)["rows"]]

    assert customers() == ["ann", "bob"]
    assert customers("--branch", "try_it") == customers("--branch=try_it") == ["ann", "bob", "cyd"]
    listed = json.loads(headrace("checkpoints shop --json").stdout)["checkpoints"]
    assert [checkpoint["kind"] for checkpoint in listed] == ["batch", "initial"]
    assert "added" in headrace("branch diff shop try_it").stdout


@pytest.mark.slow
def test_lines_are_drawn_as_a_graph(headrace, job, forked, monkeypatch):
    job.feed(("cyd", 7))
    job.run()
    monkeypatch.setenv("COLUMNS", "80")
    lines = headrace("checkpoints shop").stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line[:3].rstrip() for line in lines[1:]] == ["  *", "  |", "* |", "|/", "*", "*"], (
        "the job's clock is behind"
    )
    assert "try_it: fork of 1" in "".join(lines)
    assert "try_it: fork of 1" in headrace("checkpoints shop --branch try_it").stdout
    edges = json.loads(headrace("checkpoints shop --json").stdout)["edges"]
    (edge,) = (edge for edge in edges if edge["line"] == "try_it")
    assert edge == {
        "line": "try_it",
        "checkpoint": 2,
        "kind": "fork",
        "on_line": True,
        "from_line": None,
        "from_checkpoint": 1,
    }


def test_help_lists_the_option(headrace):
    for command in ("run", "checkpoints", "state list"):
        assert "--branch NAME" in headrace(f"{command} --help").stdout
    assert "--branch NAME" not in headrace("erase --help").stdout


@pytest.mark.slow
def test_new_branch_differs_in_nothing(headrace, forked):
    assert "nothing differs" in headrace("branch diff shop try_it").stdout


@pytest.mark.slow
def test_promoted_branch_becomes_the_job(headrace, job, forked):
    job.feed(("cyd", 7))
    job.run("try_it")
    query = ("sql", "shop", "select customer from totals order by 1", "--json")
    answer = headrace("branch", "promote", "shop", "try_it", "--why", "it is right")
    assert (
        "checkpoint 4 promotes branch 'try_it': job 'shop' continues with the branch's result of 1 micro-batch"
        in answer.stdout
    )
    assert "headrace restore shop --to 1" in answer.stdout
    assert [row["customer"] for row in json.loads(headrace(*query).stdout)["rows"]] == ["ann", "bob", "cyd"]
    assert "added" in headrace("diff shop --from 1 --to 4").stdout
    assert "promotion" in headrace("checkpoints shop").stdout


class Terminal:
    """A terminal at which somebody says yes or no, and what was asked."""

    def __init__(self, monkeypatch, *, says, input_too=True):
        self.questions = []
        of_terminal = SimpleNamespace(isatty=lambda: True)
        streams = SimpleNamespace(
            stdin=of_terminal if input_too else SimpleNamespace(isatty=lambda: False), stdout=of_terminal
        )
        monkeypatch.setattr("headrace.cli.arguments.sys", streams)
        self.says = says
        monkeypatch.setattr("typer.confirm", self._confirm)

    def _confirm(self, question, **_):
        self.questions.append(question)
        return self.says


def test_promotion_asks_at_a_terminal(headrace, job, forked, monkeypatch):
    terminal = Terminal(monkeypatch, says=False)
    answer = headrace("branch promote shop try_it")
    assert (answer.exit_code, job.last().checkpoint_id) == (2, 1)
    assert "not confirmed: nothing was changed" in answer.output
    assert terminal.questions == ["Make state and sinks of branch 'try_it' those of job 'shop'?"]


@pytest.mark.parametrize(("option", "input_too"), [("--yes", True), ("", False)])
def test_promotion_does_not_ask_again(headrace, job, forked, monkeypatch, option, input_too):
    terminal = Terminal(monkeypatch, says=False, input_too=input_too)
    job.feed(("cyd", 7))
    job.run("try_it")
    assert headrace(f"branch promote shop try_it {option}").exit_code == 0
    assert terminal.questions == []


def test_dropped_branch_is_no_longer_listed(headrace, forked):
    assert "is gone, with its tables" in headrace("branch drop shop try_it").stdout
    answer = headrace("state list shop --branch try_it")
    assert answer.exit_code == 2
    assert "branch 'try_it' of job 'shop' was dropped already. Nothing was done now." in answer.output


def test_branch_without_a_name_is_refused(headrace, job):
    assert headrace("state list shop --branch").exit_code == 2


@pytest.mark.slow
def test_commands_without_branches_refuse_the_option(headrace, forked):
    assert headrace("erase shop ann --branch try_it").exit_code == 2


@pytest.mark.slow
def test_code_override_needs_a_branch(headrace, job, forked):
    config = load_job("shop")
    with pytest.raises(ConfigError, match="--pipeline, --source and --set need --branch"):
        with_options(config, "other:pipeline", None, None)
    with pytest.raises(ConfigError, match="need --branch"):
        with_options(config, None, None, ["run.budget=5m"])
    with pytest.raises(ConfigError, match="--source 'nowhere' is not SOURCE=PATH"):
        with_options(config.on_branch("try_it"), None, ["nowhere"], None)
    with pytest.raises(ConfigError, match="--set 'run.budget' is not KEY=VALUE"):
        with_options(config.on_branch("try_it"), None, None, ["run.budget"])
    other = with_options(config.on_branch("try_it"), "other:pipeline", ["orders=/correct #1"], ["run.retries=0"])
    assert (other.pipeline, other.sources["orders"].path, other.run.retries) == ("other:pipeline", "/correct #1", 0)
    assert other.sinks == config.on_branch("try_it").sinks


@pytest.mark.slow
def test_branch_list_shows_its_own_settings(headrace, job):
    options = ("--source", "orders=s3://lake/corrected", "--set", "run.budget=5m")
    assert headrace("branch", "create", "shop", "try_it", *options).exit_code == 0
    row = json.loads(headrace("branch list shop --json").stdout)["branches"][0]
    assert row["settings"] == {"sources.orders.path": '"s3://lake/corrected"', "run.budget": "5m"}
    assert "try_it: run.budget=5m" in headrace("branch list shop").stdout


def test_unknown_setting_is_a_wrong_configuration(headrace, job):
    answer = headrace("branch create shop try_it --set run.budgt=5m")
    assert answer.exit_code == 2
    assert "--set run.budgt: unknown key; did you mean 'budget'?" in answer.output


@pytest.mark.slow
def test_branch_cannot_be_forked(headrace, forked):
    with pytest.raises(ConfigError, match="a branch has no branches"):
        fork(load_job("shop").on_branch("try_it"), "third", None, "somebody")


@pytest.mark.slow
def test_forgotten_branch_shows_its_cost(headrace, job, forked):
    job.feed(("ann", 5))
    job.run()
    compact(job.config, "compaction")
    with after_retention(job.config):
        (status,) = json.loads(headrace("status shop --json").stdout)["jobs"]
        (vacuumed,) = json.loads(headrace("maintain --files shop --dry-run --json").stdout)["branches"]
        text = headrace("status shop").stdout
        (listed,) = json.loads(headrace("branch list shop --json").stdout)["branches"]
        output = headrace("maintain --files shop --dry-run").stdout
    assert (vacuumed["name"], vacuumed["age"]) == ("try_it", "7 days")
    assert vacuumed["held_back_bytes"] > 0
    assert vacuumed["bytes"] > 0
    assert status["branches"] == [vacuumed]
    assert {**listed, **vacuumed} == listed
    sentence = (
        f"shop: branch 'try_it' is 7 days old and has {vacuumed['bytes']:,} bytes; "
        f"vacuum spares {vacuumed['held_back_bytes']:,} bytes of the job for it"
    )
    assert sentence in text
    assert sentence in output


@pytest.mark.slow
def test_checkpoints_say_which_are_lost(headrace, job):
    assert "can no longer be restored" not in headrace("checkpoints shop").stdout
    savepoint(job.config, "kept", "a test", "somebody")
    job.feed(("cyd", 3))
    job.run()
    job.compact()
    with after_retention(job.config):
        vacuum(job.config, "vacuum", dry_run=False)
    listed = json.loads(headrace("checkpoints shop --json").stdout)["checkpoints"]
    lost = [checkpoint["checkpoint_id"] for checkpoint in listed if not checkpoint["restorable"]]
    assert lost == [3, 0]
    shown = " ".join(headrace("checkpoints shop").stdout.split())
    assert "Checkpoints 0, 3 can no longer be restored, and no branch can begin there: files are gone." in shown
    for number in lost:
        with pytest.raises(StorageError):
            restore(job.config, number, "a test", "somebody")
    for number in (1, 2, 4):
        restore(job.config, number, "a test", "somebody")


@pytest.mark.slow
def test_silent_store_leaves_lost_checkpoints_unknown(headrace, job, monkeypatch):
    def refused(*_):
        raise StorageError("503: slow down")

    job.feed(("cyd", 3))
    job.run()
    monkeypatch.setattr(RestoreCheck, "_logged", refused)
    listed = json.loads(headrace("checkpoints shop --json").stdout)["checkpoints"]
    assert {checkpoint["restorable"] for checkpoint in listed} == {None}
    assert "can no longer be restored" not in headrace("checkpoints shop").stdout
