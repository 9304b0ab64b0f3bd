"""TTL in the output for people: hidden entries, expired entries, the reason why a key is gone, and the effect of another TTL."""

from __future__ import annotations

import json

import pytest

from headrace.log.checkpoint import Kind
from headrace.log.facts import NO_DECLARATIONS
from headrace.state.ttl import Gap
from tests.unit.support.demo_job import HOUR, PIPELINE, START, entry


def answer(result):
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def pipeline(home, ttl: str) -> None:
    text = PIPELINE.replace("StateTtl(timedelta(hours=12))", ttl)
    assert text != PIPELINE
    (home / "demo_cli_pipeline.py").write_text(text)


def live(headrace, *options) -> list[str]:
    return [row["key"] for row in answer(headrace("state", "scan", "--json", *options))["entries"]]


@pytest.fixture
def later(state):
    """A further checkpoint: N1 lived until 12:00, N4 until 30:00; the watermark is at 20:00."""
    state.add("keyed_state", [entry("N4", '"SFO-JFK"', 5, expires=30 * HOUR)])
    state.commit(Kind.BATCH, watermark=START + 20 * HOUR)
    return state


# ------------------------------------------------------------------------------------------------------- hiding


def test_expired_entries_are_hidden_by_default(headrace, later):
    assert live(headrace) == ["N4"]
    document = answer(headrace("state scan --with-expired --json"))["entries"]
    assert [(row["key"], row["expired"], row["expires_at"]) for row in document] == [
        ("N1", True, "2013-01-31T12:00:00Z"),
        ("N4", False, "2013-02-01T06:00:00Z"),
    ]


def test_currently_declared_ttl_decides_expiry(headrace, later, home):
    pipeline(home, "StateTtl(timedelta(hours=21))")
    assert live(headrace) == ["N1", "N4"]
    (row,) = answer(headrace("state get N1 --operator legs --json"))["entries"]
    assert row["expires_at"] == "2013-01-31T21:00:00Z"


def test_without_a_ttl_nothing_is_hidden(headrace, later, home):
    pipeline(home, "None")
    document = answer(headrace("state scan --with-expired --json"))["entries"]
    assert [(row["expired"], row["expires_at"]) for row in document] == [(False, None), (False, None)]


def test_entry_with_its_own_ttl_is_shown(headrace, later):
    later.add("keyed_state", [entry("N1", '"own"', 6, expires=12 * HOUR) | {"ttl_ms": 25 * HOUR}])
    later.commit(Kind.BATCH)
    assert live(headrace) == ["N1", "N4"]


def test_processing_time_is_now_without_checkpoint(headrace, later, home, at_nine):
    pipeline(home, "StateTtl(timedelta(hours=12), expiry=ExpiryClock.PROCESSING_TIME)")
    text = (home / "demo_cli_pipeline.py").read_text().replace("import KeyedP", "import ExpiryClock, KeyedP")
    (home / "demo_cli_pipeline.py").write_text(text)
    assert live(headrace) == []
    assert live(headrace, "--at", "4") == ["N1"]  # committed at 4:00


@pytest.mark.parametrize("resumed", [False, True])
def test_pause_never_revives_entries_ended_by_watermark(headrace, later, home, at_nine, resumed):
    pipeline(home, "StateTtl(timedelta(hours=18), on_gap=OnGap.PROLONG, gap_threshold=timedelta(hours=1))")
    text = (home / "demo_cli_pipeline.py").read_text().replace("import KeyedP", "import OnGap, KeyedP")
    (home / "demo_cli_pipeline.py").write_text(text)
    if resumed:
        gap = Gap(START + 5 * HOUR, START + 9 * HOUR, START + 20 * HOUR)
        later.commit(Kind.BATCH, watermark=START + 20 * HOUR, pauses=(gap,))
    assert live(headrace) == ["N4"]
    (row,) = answer(headrace("state expired --json"))["entries"]
    assert (row["key"], row["expires_at"]) == ("N1", "2013-01-31T18:00:00Z")
    assert changes_of(headrace)[-1] == (None, "expired, and still stored")


def test_broken_pipeline_hides_no_further_entries(headrace, later, home):
    (home / "demo_cli_pipeline.py").write_text("raise RuntimeError('no such luck')")
    result = headrace("state scan --json")
    assert result.exit_code == 0
    assert [row["key"] for row in json.loads(result.stdout)["entries"]] == ["N4"]
    assert "no such luck" in result.stderr


# ------------------------------------------------------------------------------------------------------ expired


def test_expired_lists_entries_without_values(headrace, later):
    document = answer(headrace("state expired --json"))
    assert [(row["operator"], row["state"], row["entries"], row["keys"]) for row in document["states"]] == [
        ("legs", "last_leg", 1, 1)
    ]
    assert [(row["key"], row["expires_at"]) for row in document["entries"]] == [("N1", "2013-01-31T12:00:00Z")]
    assert "LAX" not in headrace("state expired").stdout
    assert "LAX" not in headrace("state expired --json").stdout


def test_expired_shows_when_bytes_are_removed(headrace, later):
    later.commit(Kind.COMPACTION, metrics={"expired": 3})
    document = answer(headrace("state expired --json"))
    assert document["savepoints"] == ["before"]
    (removal,) = document["removals"]
    assert (removal["checkpoint_id"], removal["entries"]) == (6, 3)
    # The checkpoint before the compaction, of 5:00, names the files for a week.
    assert removal["files_until"] == "2013-02-07T05:00:00Z"
    output = headrace("state expired").stdout
    assert "2013-02-07T05:00:00Z" in output
    assert "before" in output


def test_expired_reports_an_empty_result(headrace, state):
    assert "nothing that has expired is stored" in headrace("state expired").stdout
    assert answer(headrace("state expired --json"))["states"] == []


@pytest.mark.parametrize(
    ("ttl", "goes", "comes_back"),
    [("12h", 0, 0), ("1h", 1, 0), ("2h", 1, 0), ("2h1ms", 0, 0), ("20h", 0, 0), ("20h1ms", 0, 1), ("off", 0, 1)],
)
def test_dry_run_tries_another_ttl(headrace, later, ttl, goes, comes_back):
    before = len(later.log.checkpoints)
    document = answer(headrace("state", "expired", "--state", "last_leg", "--ttl", ttl, "--json"))
    assert (document["entries"], document["keys"]) == (1, 1)
    assert (document["entries_that_go"], document["keys_that_go"], document["entries_that_come_back"]) == (
        goes,
        goes,
        comes_back,
    )
    later.log.refresh()
    assert len(later.log.checkpoints) == before


def test_enabling_ttl_expires_nothing_at_once(headrace, later, home):
    pipeline(home, "None")
    later.commit(Kind.BATCH, declared=NO_DECLARATIONS.with_ttls({"legs.last_leg": None}))
    result = headrace("state expired --state last_leg --ttl 1ms")
    assert "0 of 2 entries would be dead at once" in result.stdout
    assert "begin with the first micro-batch" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ttl 12h --state nope", "the job declares: legs.last_leg"),
        ("--ttl soon --state last_leg", "--ttl: expected a duration"),
        ("--ttl 0s --state last_leg", "at least 1 ms"),
    ],
)
def test_impossible_dry_run_says_why(headrace, later, words, message):
    result = headrace(f"state expired {words}")
    assert result.exit_code == 2
    assert message in result.stderr


# ------------------------------------------------------------------------------------------------------ history


def changes_of(headrace, key="N1"):
    return [(row["checkpoint_id"], row["what"]) for row in answer(headrace(f"state history {key} --json"))["changes"]]


def test_history_describes_each_change(headrace, later):
    assert changes_of(headrace, "N2") == [(1, "written"), (2, "removed")]
    assert changes_of(headrace) == [(1, "written"), (2, "changed"), (None, "expired, and still stored")]


def test_history_distinguishes_renewing_reads_from_writes(headrace, state):
    state.add("keyed_state", [entry("N1", '"LAX-SFO"', 5, expires=15 * HOUR)])
    state.commit(Kind.BATCH)
    assert changes_of(headrace)[-1] == (5, "renewed")


def test_history_shows_removals_by_age(headrace, later):
    later.add("keyed_state", [entry("N1", None, 6, deleted=True), entry("N4", None, 6, deleted=True)])
    later.commit(Kind.BATCH)
    assert changes_of(headrace)[-1] == (6, "removed, since it had expired")
    assert changes_of(headrace, "N4")[-1] == (6, "removed")


def test_history_knows_which_compaction_dropped_a_key(headrace, later):
    later.add("keyed_state", [entry("N4", '"SFO-JFK"', 5, expires=30 * HOUR)], whole=True)
    later.commit(Kind.COMPACTION)
    assert changes_of(headrace) == [(1, "written"), (2, "changed"), (6, "expired, and dropped by this compaction")]
    later.add("keyed_state", [entry("N1", '"again"', 7, expires=30 * HOUR)])
    later.commit(Kind.BATCH)
    assert changes_of(headrace)[2:] == [(6, "expired, and dropped by this compaction"), (7, "written")]


def test_history_shows_moments_of_commits(headrace, later):
    rows = answer(headrace("state history N1 --json"))["changes"]
    assert [row["at"] for row in rows] == ["2013-01-31T01:00:00Z", "2013-01-31T02:00:00Z", "2013-01-31T12:00:00Z"]
