"""A day is corrected in a chain of jobs: each reads the sink of the one before it, by days (no JVM)."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace import clock
from headrace.errors import StorageError
from tests.unit.cli.chained_jobs import DAY, FIRST, OF_TABLE, Chain, job_file, write_home
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.demo_job import headrace

__all__ = ["headrace"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    write_home(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("chain_pipelines", None)


CORRECTED = [("01", 1), ("01", 2), ("02", 11), ("02", 13), ("02", 15), ("03", 21), ("03", 22)]
SUMS = [("01", 1), ("01", 3), ("02", 14), ("02", 27), ("02", 42), ("03", 63), ("03", 85)]


@pytest.fixture
def chain(headrace, home):
    with clock.installed(clock.VirtualClock(FIRST + 30 * DAY)):
        result = Chain(headrace, home)
        for number in range(3):
            result.sell(number, 10 * number + 1, 10 * number + 2)
            result.run(number)
        yield result


def assert_corrected(chain):
    assert [chain.rows(job) for job in chain.jobs] == [CORRECTED, CORRECTED, SUMS]
    assert all(chain.call(f"input {job}")["input"] == [] for job in chain.jobs)


@pytest.mark.slow
def test_two_commands_correct_the_chain(chain):
    chain.correct_second_day()
    result = chain.call("backfill silver --pending --promote automatic --downstream")
    assert (result["outcome"], result["from"], result["to"]) == (
        "promoted",
        "2024-03-02T00:00:00Z",
        "2024-03-03T00:00:00Z",
    )
    assert [(own["job"], own["outcome"]) for own in result["downstream"]] == [("gold", "promoted")]
    assert_corrected(chain)


@pytest.mark.slow
def test_one_command_corrects_the_chain(chain):
    chain.sell(1, 11, 13, 15)
    asked = "--from 2024-03-02 --to 2024-03-03 --promote automatic --downstream"
    result = chain.call(f"backfill bronze {asked}")
    assert [(own["job"], own["outcome"]) for own in result["downstream"]] == [
        ("silver", "promoted"),
        ("gold", "promoted"),
    ]
    assert_corrected(chain)


@pytest.mark.slow
def test_run_passes_over_a_promotion(chain):
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert report["pending"] == {"from": "2024-03-02T00:00:00Z", "to": "2024-03-03T00:00:00Z"}
    (warning,) = report["warnings"]
    assert warning["kind"] == "pending_correction"
    assert (
        "source 'sales': job 'bronze' has corrected what this job has taken in of 2024-03-02 to 2024-03-03"
        in (warning["message"])
    )
    assert ("02", 12) in chain.rows("silver")
    chain.call("backfill silver --pending --promote automatic")
    assert chain.rows("silver") == [*CORRECTED, ("04", 31)]


@pytest.mark.slow
def test_automatic_job_follows_by_itself(chain):
    chain.configure("silver", "replay: {follow: automatic, promote: automatic}\n")
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert (report["rows_in"], report["backfill"]["outcome"]) == (1, "promoted")
    assert chain.rows("silver") == [*CORRECTED, ("04", 31)]


@pytest.mark.slow
def test_job_that_never_follows_is_silent(chain):
    chain.configure("silver", "replay: {follow: never}\n")
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert report["warnings"] == []
    (warning,) = chain.call("status silver")["jobs"][0]["warnings"]
    assert warning["kind"] == "pending_correction"


@pytest.mark.slow
def test_acknowledged_correction_is_left_out(chain):
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze", "silver"))
    (own,) = chain.call("input silver")["input"]
    chain.call(f"input silver --acknowledge {own['file']} --why no-need")
    assert chain.call("backfill silver --pending")["outcome"] == "nothing_pending"


@pytest.mark.slow
def test_job_behind_the_promotion_reads_it(chain):
    chain.sell(3, 31, 32)
    chain.run(3, ("bronze",))
    chain.correct_second_day()
    DeltaTable(str(chain.home / "lake" / "bronze")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    chain.run(3, ("silver",))
    assert [row for row in chain.rows("silver") if row[0] == "04"] == [("04", 31), ("04", 32)]


@pytest.mark.slow
def test_waiting_job_holds_those_behind(chain):
    chain.correct_second_day()
    result = chain.call("backfill silver --pending --downstream")
    assert (result["outcome"], result["downstream"]) == ("needs_approval", [])
    chain.call(f"branch promote silver {result['name']}")
    result = chain.call("backfill gold --pending --promote automatic")
    assert result["outcome"] == "promoted"
    assert_corrected(chain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [("", "--from DAY --to DAY, or --pending"), ("--pending --from 2024-03-02", "leave --from and --to out")],
)
def test_days_must_be_said_once(chain, options, message):
    answer = chain.headrace(f"backfill silver {options}".strip())
    assert answer.exit_code == 2
    assert message in " ".join(answer.output.split())


@pytest.mark.slow
def test_promotion_is_passed_over_without_intervals(chain):
    source = OF_TABLE.format("bronze").replace(", interval: {by: partition, column: day}", "")
    text = job_file("plain", source).replace("mode: interval\n", "")
    (chain.home / "conf" / "jobs" / "plain.yaml").write_text(text)
    assert chain.call("run plain")["rows_in"] == 6
    chain.correct_second_day()
    report = chain.call("run plain")
    (warning,) = report["warnings"]
    assert (report["rows_in"], warning["kind"]) == (0, "passed_corrections")
    assert "passed over version 4 (a promotion of job 'bronze'" in warning["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("fork", "on_change"), [(3, "fail"), (1, "skip"), (1, "fail")])
def test_promotion_ahead_of_its_job_adds_rows(chain, fork, on_change):
    source = OF_TABLE.format("bronze").replace(", interval: {by: partition, column: day}", f", on_change: {on_change}")
    text = job_file("plain", source).replace("mode: interval\n", "")
    (chain.home / "conf" / "jobs" / "plain.yaml").write_text(text)
    assert chain.call("run plain")["rows_in"] == 6
    chain.call(f"branch create bronze ahead --at {fork}")
    chain.sell(3, 31, 32)
    for number in range(fork, 4):
        chain.call(f"run bronze --branch ahead {chain.of_day(number)}")
    chain.call("branch promote bronze ahead")
    answer = chain.headrace("run plain --json")
    if fork == 3:
        assert json.loads(answer.stdout)["rows_in"] == 2
    elif on_change == "skip":
        assert json.loads(answer.stdout)["warnings"][0]["kind"] == "passed_corrections"
    else:
        assert answer.exit_code == 7
        assert "rewrites rows" in answer.output


@pytest.mark.slow
def test_second_correction_joins_the_open_backfill(chain):
    chain.configure("silver", "replay: {follow: automatic}\n")
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert report["backfill"]["outcome"] == "needs_approval"
    chain.sell(0, 1, 2, 3)
    chain.call("backfill bronze --pending --promote automatic")
    chain.sell(4, 41)
    chain.run(4, ("bronze",))
    (report,) = chain.run(4, ("silver",))
    own = report["backfill"]
    assert (own["outcome"], own["from"]) == ("needs_approval", "2024-03-01T00:00:00Z")
    chain.call(f"branch promote silver {own['name']}")
    assert chain.rows("silver") == sorted([("01", 3), *CORRECTED, ("04", 31), ("05", 41)])


@pytest.mark.slow
def test_failed_backfill_fails_no_run(chain, monkeypatch):
    chain.configure("silver", "replay: {follow: automatic}\n")
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))

    def refuse(*_args, **_options):
        raise StorageError("the disk is full")

    monkeypatch.setattr("headrace.run.backfill.fork", refuse)
    (report,) = chain.run(3, ("silver",))
    assert (report["rows_in"], report["backfill"]["outcome"]) == (1, "failed")
    assert report["backfill"]["message"] == "the disk is full"


@pytest.mark.slow
def test_new_job_stops_at_former_promotions(chain):
    chain.correct_second_day()
    source = OF_TABLE.format("bronze").replace(", interval: {by: partition, column: day}", "")
    text = job_file("plain", source).replace("mode: interval\n", "")
    (chain.home / "conf" / "jobs" / "plain.yaml").write_text(text)
    with clock.installed(clock.SystemClock()):  # commits have the time of the machine
        answer = chain.headrace("run plain --json")
    assert answer.exit_code == 7
    assert "rewrites rows" in answer.output


DAYS = 4
LEASE = 3_600_000
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a history takes too long for many shorter ones
FIXTURES = [HealthCheck.function_scoped_fixture]  # each history has a folder of its own
PLACES = ["prepare.after", "commit.after", "publish.half", "promotion.staged", "promotion.committed", "backfill.forked"]
ACTS = st.one_of(
    st.tuples(st.just("sell"), st.integers(0, DAYS - 1), st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    st.tuples(st.just("run"), st.sampled_from(Chain.jobs), st.sampled_from([None, None, *PLACES])),
    st.tuples(st.just("backfill"), st.sampled_from(Chain.jobs), st.sampled_from([None, *PLACES])),
)


class ShiftedClock(clock.VirtualClock):
    """A virtual clock whose ids differ in their first digits, by which files are named."""

    def unique_id(self):
        return super().unique_id()[::-1]


class History:
    """What happens to the chain, and a plain model of its files."""

    def __init__(self, chain, virtual):
        self.chain, self.clock, self.files, self.position = chain, virtual, {}, dict.fromkeys(chain.jobs, 0)

    def sell(self, number, cents):
        """Write a day that is still to come, or correct one that the first job has taken in."""
        self.files[number] = cents
        self.chain.sell(number, *cents)

    def run(self, job, place):
        """Run a job's next day, once the job before it has that day."""
        before = self.chain.jobs[self.chain.jobs.index(job) - 1] if job != "bronze" else None
        number = self.position[job]
        is_there = number in self.files if before is None else self.position[before] > number
        if number == DAYS or not is_there:
            return
        self.killed_first(f"run {job} {self.chain.of_day(number)}", place)
        self.position[job] += 1

    def backfill(self, job, place):
        if self.position[job]:
            self.killed_first(f"backfill {job} --pending --promote automatic", place)

    def killed_first(self, words, place):
        """Call a command that dies at a place, if it reaches it, and call it again."""
        with suppress(Killed), dying_at(place):
            self.chain.call(words)
            return
        self.clock.advance(LEASE)
        self.chain.call(words)

    def rows(self, days):
        return sorted((f"{day + 1:02d}", cents) for day in range(days) for cents in self.files[day])

    def sums(self):
        total, rows = 0, []
        for day in range(DAYS):
            for cents in self.files[day]:
                total += cents
                rows.append((f"{day + 1:02d}", total))
        return sorted(rows)


@pytest.mark.slow
@settings(max_examples=4, deadline=None, phases=PHASES, suppress_health_check=FIXTURES)
@given(acts=st.lists(ACTS, min_size=6, max_size=14))
def test_any_history_ends_corrected(headrace, monkeypatch, tmp_path_factory, acts):
    home = tmp_path_factory.mktemp("chain")
    write_home(home)
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("chain_pipelines", None)
    virtual = ShiftedClock(FIRST + 30 * DAY)
    with clock.installed(virtual):
        history = History(Chain(headrace, home), virtual)
        for verb, *words in [("sell", 0, [5]), ("run", "bronze", None), ("run", "silver", None), *acts]:
            virtual.advance(1000)
            getattr(history, verb)(*words)
        for number in range(DAYS):
            history.sell(number, history.files.get(number, [number]))
        for job in Chain.jobs:
            for _ in range(DAYS):
                history.run(job, None)
        history.chain.call("backfill bronze --pending --promote automatic --downstream")
        rows = [history.chain.rows(job) for job in Chain.jobs]
    assert rows == [history.rows(DAYS), history.rows(DAYS), history.sums()]
