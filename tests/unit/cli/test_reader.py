"""Reading state at a checkpoint: which rows are live, and that nothing else can be reached."""

from __future__ import annotations

import msgspec
import pytest
from deltalake import DeltaTable

from headrace.checkpoint.checkpoint import Kind
from headrace.checkpoint.reader import StateReader
from headrace.config import load_job
from headrace.errors import ConfigError, StorageError
from tests.unit.cli.conftest import entry


def reader(at=None, **options) -> StateReader:
    return StateReader(load_job("demo"), at, **options)


def values(rows) -> list[str | None]:
    return [row["value"] for row in rows.dicts()]


def test_the_last_change_of_an_entry_is_its_state(state):
    assert values(reader().get("N1", state="last_leg")) == ['"LAX-SFO"']


def test_a_removed_entry_is_gone_but_was_there_before(state):
    assert values(reader(2).get("N2")) == []
    assert values(reader(1).get("N2")) == ['"JFK-BOS"']


def test_an_older_checkpoint_sees_its_own_version(state):
    assert values(reader("1").get("N1", "legs")) == ['"JFK-LAX"']


def test_a_savepoint_is_found_by_name(state):
    assert reader("before").checkpoint.checkpoint_id == 3


def test_what_no_checkpoint_names_is_not_there(state):
    uncommitted = dict(state.versions)
    row = reader(2).scan(limit=1).dicts()[0]
    state.add("keyed_state", [{**row, "value": '"never"', "checkpoint_id": 9, "deleted": False}])
    assert state.versions != uncommitted
    assert values(reader().get("N1", state="last_leg")) == ['"LAX-SFO"']


def test_expired_entries_are_hidden_at_the_instant_of_the_watermark(state):
    assert values(reader(2).get("N3")) == []
    assert values(reader(2, with_expired=True).get("N3")) == ['"X"']


def test_the_rows_of_a_materializer_belong_to_a_key_too(state):
    (row,) = reader(2).get("N1", state="history").dicts()
    assert (row["operator"], row["user_key"], row["value"]) == ("latest", "4", '{"tail":"N1"}')


@pytest.mark.parametrize("key", ["N1", '"N1"'])
def test_a_text_key_needs_no_quotes(state, key):
    assert len(reader().get(key, "legs").rows) == 1


@pytest.mark.parametrize("key", ["' OR 1=1 --", "N1' OR '1'='1", '"', "", "\x00", "ü"])
def test_a_strange_key_is_just_not_found(state, key):
    assert reader().get(key).rows == []


def test_scanning_goes_by_prefix_in_key_order(state):
    assert values(reader(1).scan(prefix="N")) == ['"JFK-LAX"', '"JFK-BOS"']
    assert values(reader(1).scan(prefix="N2")) == ['"JFK-BOS"']
    assert values(reader(1).scan(state="nope")) == []


def test_states_are_counted_as_they_live(state):
    found = {(row["operator"], row["state"]): row for row in reader(2).list_states().dicts()}
    assert found["legs", "last_leg"] == {
        "operator": "legs", "state": "last_leg", "kind": None, "entries": 1, "keys": 1, "bytes": 9, "last_change": 2,
        "type": None,
    }  # fmt: skip
    assert found["latest", "history"]["entries"] == 1
    assert found["legs", "event_time"]["entries"] == 1


@pytest.mark.parametrize(("with_expired", "entries"), [(False, 1), (True, 2)])
def test_states_are_counted_as_they_are_scanned(state, with_expired, entries):
    state.add("keyed_state", [entry("N3", '"X"', 5, expires=0)])
    state.commit(Kind.BATCH)
    found = {row["state"]: row["entries"] for row in reader(with_expired=with_expired).list_states().dicts()}
    assert found["last_leg"] == len(reader(with_expired=with_expired).scan(state="last_leg").rows) == entries


def test_history_reaches_back_over_a_compaction(state):
    rows = reader().history("N1").dicts()
    assert [(row["checkpoint_id"], row["value"]) for row in rows] == [(1, '"JFK-LAX"'), (2, '"LAX-SFO"')]


def test_history_leaves_out_what_a_restore_undid(state):
    DeltaTable(str(state.folder / "keyed_state")).restore(1)
    state.versions["keyed_state"] += 1
    state.commit(Kind.RESTORE, restored_from=1)
    assert [row["checkpoint_id"] for row in reader().history("N1").dicts()] == [1]


def test_history_does_without_versions_that_were_vacuumed(state):
    for file in (state.folder / "keyed_state").glob("*.parquet"):
        if file.name not in {
            uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(state.folder / "keyed_state")).file_uris()
        }:
            file.unlink()
    assert [row["checkpoint_id"] for row in reader().history("N1").dicts()] == [2]


def test_a_vacuumed_checkpoint_says_so(state):
    for file in (state.folder / "keyed_state").glob("*.parquet"):
        file.unlink()
    with pytest.raises(StorageError, match="vacuumed"):
        reader(1).get("N1")


def test_timers_come_in_time_order(state):
    assert [row["key"] for row in reader(1).timers().dicts()] == ['"N2"', '"N1"']
    assert [row["key"] for row in reader().timers().dicts()] == ['"N1"']


def test_the_quarantine_keeps_the_reason(state):
    (row,) = reader().quarantine().dicts()
    assert (row["position"], row["raw"], row["error"]) == ("f:7", "[bold]", "no tail")


def test_sql_sees_live_entries_changes_and_checkpoints(state):
    assert reader(2).sql("SELECT count(*) FROM keyed_state").rows == [(1,)]
    assert reader(2).sql("select count(*) from KEYED_STATE_changelog").rows == [(5,)]
    assert reader().sql("select kind from checkpoints order by checkpoint_id").rows[-1] == ("compaction",)


def test_a_view_may_be_used_twice(state):
    assert reader(1).sql("select count(*) from timers a join timers b using (key)").rows == [(2,)]


def test_a_sink_is_read_as_it_was_at_the_checkpoint(state):
    assert reader(1).sql("select leg from board").rows == [("JFK-LAX",)]
    assert reader(2).sql("select leg from board").rows == [("LAX-SFO",)]
    assert reader().sql("select leg from board").rows == [("LAX-SFO",)]


def test_moments_are_in_utc(state):
    ((moment,),) = reader(1).sql("select min(timestamp) from timers").rows
    assert moment.isoformat() == "2013-01-31T01:00:00+00:00"


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "copy (select 1) to '/tmp/out.csv'",
        "attach '/tmp/other.db'",
        "install httpfs",
        "set enable_external_access = true",
        "select * from state",
        "select 1; select 2",
        "nonsense",
        "",
    ],
)
def test_sql_reaches_nothing_else(state, query):
    with pytest.raises(ConfigError):
        reader().sql(query)


def test_an_unknown_checkpoint_names_the_known_ones(state):
    with pytest.raises(ConfigError, match=r"no checkpoint 99 \(known: 0 to 4\)"):
        reader(99)
    with pytest.raises(ConfigError, match="no savepoint 'after'"):
        reader("after")


def test_a_job_that_never_ran_says_how_to_start_it(home):
    with pytest.raises(ConfigError, match="headrace run demo"):
        reader()


def test_a_table_that_the_checkpoint_does_not_name_is_empty(state):
    at = reader()
    versions = {name: version for name, version in at.checkpoint.versions.items() if name != "timers"}
    at.checkpoint = msgspec.structs.replace(at.checkpoint, versions=versions)
    assert at.timers().rows == []
