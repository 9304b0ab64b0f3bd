"""Commands that run or change a job: the arguments that they pass on, and their output. The engine is a fake here."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from headrace import spark
from headrace.errors import FencedError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.run.options import Event, RunReport

DAY = 86_400_000
START = 1_359_590_400_000


class FakeEngine:
    """Records every call and answers with a checkpoint."""

    waiting = 0

    def __init__(self) -> None:
        self.calls = []

    def run(self, config, options, on_event):
        self.calls.append((config, options))
        on_event(Event("committed", "checkpoint 7: 12 rows"))
        return RunReport(
            job=config.job, run_id=options.run_id, checkpoints=[6, 7], rows_in=1200, rows_out=5, seconds=1.25,
            stopped_because="drained", quarantined=0, waiting=self.waiting,
        )  # fmt: skip

    def change(self, name):
        def call(config, *arguments, **options):
            self.calls.append((name, config.job, *arguments, options))
            return Checkpoint(
                incarnation=1,
                checkpoint_id=8, kind=Kind.RESTORE, run_id="r", attempt_id="a", max_parallelism=128, versions={},
                committed_at=START, restored_from=3,
            )  # fmt: skip

        return call


@pytest.fixture
def fake(home, monkeypatch) -> FakeEngine:
    result = FakeEngine()
    monkeypatch.setattr(spark, "run", result.run)
    for module, name in (("restore", "restore"), ("restore", "savepoint"), ("compact", "compact")):
        monkeypatch.setattr(f"headrace.edits.{module}.{name}", result.change(name))
    return result


def test_run_passes_every_option_on(headrace, fake):
    result = headrace(
        "run demo --mode interval --interval-start 2013-01-31 --interval-end 2013-02-01T00:00:00+00:00 --run-id r1 "
        "--budget 1h30m --max-batches 3 --parallelism 4 --backend hashmap --cluster local --force-fail-over --sync --finish --end-of-input"
    )
    assert result.exit_code == 0, result.stderr
    ((config, options),) = fake.calls
    assert (config.job, options.mode, options.run_id) == ("demo", "interval", "r1")
    assert (options.interval_start, options.interval_end) == (START, START + DAY)
    assert (options.budget, options.max_batches, options.parallelism) == (5400.0, 3, 4)
    assert (options.backend, options.cluster, options.force_fail_over) == ("hashmap", "local", True)
    assert (options.async_state, options.finish) == (False, True)
    assert options.end_of_input


@pytest.mark.parametrize(("given", "missing"), [("start", "end"), ("end", "start")])
def test_half_an_interval_is_refused(headrace, fake, given, missing):
    result = headrace(f"run demo --interval-{given} 2013-01-31")
    assert (result.exit_code, fake.calls) == (2, [])
    assert f"--interval-{given} is given without --interval-{missing}" in result.stderr


def test_interval_that_is_not_looked_at_is_noted(headrace, fake, home):
    interval = "--interval-start 2013-01-31 --interval-end 2013-02-01"
    assert "and does not look at the interval. To take in the interval alone: --mode interval" in " ".join(
        headrace(f"run demo {interval}").stderr.split()
    )
    for words in (f"{interval} --mode interval", f"{interval} --report {home}/report.json", ""):
        assert "note" not in headrace(f"run demo {words}").stderr
    assert len(fake.calls) == 4


def test_replay_in_place_names_the_backfill(headrace, fake):
    result = headrace("run demo --mode interval --interval-start 2013-01-31 --interval-end 2013-02-01 --replay")
    assert (result.exit_code, fake.calls) == (2, [])
    assert "headrace backfill JOB --from START --to END" in result.stderr


def test_run_without_options_leaves_all_to_the_configuration(headrace, fake):
    headrace("run")
    ((_, options),) = fake.calls
    assert (options.mode, options.budget, options.backend, options.force_fail_over) == ("auto", None, None, False)
    assert (options.async_state, options.finish) == (None, False)
    assert options.run_id.startswith("manual-")


def test_run_reports_elements_it_could_not_finish(headrace, fake):
    message = "To continue: headrace run demo --finish"
    assert message not in headrace("run --finish").stdout
    fake.waiting = 3
    assert message in headrace("run --finish").stdout
    assert message not in headrace("run").stdout


def test_run_says_when_the_end_was_not_reached(headrace, fake):
    assert "To continue: headrace run demo --end-of-input" in headrace("run --end-of-input").stdout


@pytest.mark.parametrize("mode", ["caught-up", "caught_up"])
def test_both_spellings_of_a_mode_are_understood(headrace, fake, mode):
    headrace(f"run --mode {mode}")
    assert fake.calls[0][1].mode == "caught_up"


def test_progress_goes_to_stderr_report_to_stdout(headrace, fake):
    result = headrace("run --json")
    assert json.loads(result.stdout)["checkpoints"] == [6, 7]
    assert "committed: checkpoint 7: 12 rows" in result.stderr
    assert "6 to 7" in headrace("run").stdout


@pytest.mark.parametrize(
    "option", ["--mode sideways", "--budget soon", "--backend disk", "--interval-start monday", "--cluster moon"]
)
def test_wrong_option_of_run_starts_nothing(headrace, fake, option):
    assert headrace(f"run {option}").exit_code == 2
    assert fake.calls == []


def test_restore_takes_ids_and_names(headrace, fake):
    headrace("restore", "--to", "3", "--why", "bad data", "--yes", "--run-id", "r")
    headrace("restore", "demo", "--to", "before", "--why", "bad data", "--yes", "--run-id", "r")
    assert [call[:5] for call in fake.calls] == [
        ("restore", "demo", 3, "bad data", "r"),
        ("restore", "demo", "before", "bad data", "r"),
    ]


def test_restore_without_terminal_needs_confirmation_option(headrace, fake):
    result = headrace("restore --to 3 --why because")
    assert (result.exit_code, "--yes" in result.stderr, fake.calls) == (2, True, [])


@pytest.mark.parametrize(("option", "times"), [("", 0), (" --yes", 1)])
def test_restore_says_once_that_messages_stay(headrace, fake, monkeypatch, option, times):
    questions = []

    def confirm(question, **_):
        questions.append(question)
        return True

    monkeypatch.setattr("headrace.cli.restore.stays_sent", lambda _: ["Messages stay."])
    monkeypatch.setattr("headrace.cli.restore.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr("typer.confirm", confirm)
    shown = headrace(f"restore --to 3 --why because{option}").stdout
    assert (shown.count("Messages stay."), "".join(questions).count("Messages stay.")) == (times, 1 - times)


@pytest.mark.parametrize("command", ["restore --yes --to 3", "savepoint before"])
def test_changing_commands_need_a_reason(headrace, fake, command):
    assert headrace(command).exit_code == 2
    assert fake.calls == []


def test_savepoint_and_compact_answer_with_their_checkpoint(headrace, fake):
    result = json.loads(headrace("savepoint demo before --why upgrade --json").stdout)["checkpoint"]
    assert result["checkpoint_id"] == 8
    assert "compacted as checkpoint 8" in headrace("maintain --state --every 7").stdout
    assert [call[0] for call in fake.calls] == ["savepoint", "compact"]


def test_savepoint_output_warns_about_unkept_sinks(headrace, fake):
    output = " ".join(headrace("savepoint demo before --why upgrade").stdout.split())
    assert "Savepoints keep files of the state, and none of the sinks: a VACUUM of '" in output


def test_compaction_that_is_not_due_is_no_error(headrace, fake, monkeypatch):
    monkeypatch.setattr("headrace.edits.compact.compact", lambda *_: None)
    result = headrace("maintain --state --every 7 --json")
    assert (result.exit_code, json.loads(result.stdout)["checkpoint"]) == (0, None)


def test_vacuum_removes_only_without_dry_run(headrace, fake, monkeypatch):
    asked = []

    def vacuum(config, run_id, *, dry_run):
        asked.append(dry_run)
        return ["a.parquet"]

    monkeypatch.setattr("headrace.edits.vacuum.vacuum", vacuum)
    assert "would be removed" in headrace("maintain --files --dry-run").stdout
    assert json.loads(headrace("maintain --files --json").stdout)["files"] == ["a.parquet"]
    assert asked == [True, False]


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_failed_verify_exits_with_one(headrace, fake, monkeypatch, ok, code):
    findings = [SimpleNamespace(check="ids", ok=ok, detail="1 to 3")]
    monkeypatch.setattr("headrace.commit.verify.verify", lambda _, **_options: findings)
    result = headrace("verify --json")
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (code, ok)


def test_held_job_ends_with_three(headrace, fake, monkeypatch):
    def fenced(*_):
        msg = "run 419 holds the job"
        raise FencedError(msg)

    monkeypatch.setattr("headrace.edits.compact.compact", fenced)
    result = headrace("maintain --state")
    assert (result.exit_code, result.stderr) == (3, "FencedError: run 419 holds the job\n")
