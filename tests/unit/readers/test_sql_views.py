"""Queries over views of state, checkpoints and sinks; nothing else can be accessed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.cli.output import shown
from headrace.errors import ConfigError
from headrace.readers.sql import ask_sql
from tests.unit.readers.opened_jobs import opened


def test_sql_sees_live_entries_changes_and_checkpoints(state):
    assert ask_sql(opened(2), "SELECT count(*) FROM keyed_state").rows == [(1,)]
    assert ask_sql(opened(2), "select count(*) from KEYED_STATE_changelog").rows == [(5,)]
    assert ask_sql(opened(), "select kind from checkpoints order by checkpoint_id").rows[-1] == ("compaction",)


def test_view_may_be_used_twice(state):
    assert ask_sql(opened(1), "select count(*) from timers a join timers b using (key)").rows == [(2,)]


def test_sink_is_read_as_of_the_checkpoint(state):
    assert ask_sql(opened(1), "select leg from board").rows == [("JFK-LAX",)]
    assert ask_sql(opened(2), "select leg from board").rows == [("LAX-SFO",)]
    assert ask_sql(opened(), "select leg from board").rows == [("LAX-SFO",)]


RESERVED = pa.table({"at": [3, 1], "end": [30, 10], "order": ["c", "a"], "plain": [1, 2]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("select at from board order by at", [(1,), (3,)]),
        ("select max(at) as at, min(end) from board", [(3, 10)]),
        ("select b.at, end + at from board b where at < 2", [(1, 11)]),
        ("SELECT At FROM board WHERE end = 30 -- at the end", [(3,)]),
        ("select order from board order by order", [("a",), ("c",)]),
        ("select case when at > 1 then end else 0 end from board order by at", [(0,), (30,)]),
        ("select at, 'at the end' from board where \"order\" = 'a'", [(1, "at the end")]),
        ('select "at", plain from board where plain = 2', [(1, 2)]),
    ],
)
def test_columns_may_have_names_that_sql_reserves(state, query, answer):
    write_deltalake(str(state.sink), RESERVED, mode="overwrite", schema_mode="overwrite")
    assert ask_sql(opened(), query).rows == answer


@pytest.mark.parametrize("query", ["select at from", "select from board at at", "select nope from board"])
def test_wrong_query_is_reported_as_written(state, query):
    write_deltalake(str(state.sink), RESERVED, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(ConfigError, match="the query failed"):
        ask_sql(opened(), query)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("TIMESTAMP '2026-01-31 05:00:00'", "2026-01-31T05:00:00"),
        ("TIMESTAMP '2026-01-31 05:00:00.25'", "2026-01-31T05:00:00.250"),
        ("TIMESTAMP '2026-01-31 05:00:00.190001'", "2026-01-31T05:00:00.190001"),
        ("TIMESTAMPTZ '2026-01-31 05:00:00.190001+01'", "2026-01-31T04:00:00.190001Z"),
    ],
)
def test_times_are_shown_as_they_are(state, moment, text):
    ((value,),) = ask_sql(opened(), f"select {moment}").rows
    assert shown(value) == text


def test_moments_are_in_utc(state):
    ((timestamp,),) = ask_sql(opened(1), "select min(timestamp) from timers").rows
    assert timestamp.isoformat() == "2013-01-31T01:00:00+00:00"


@pytest.mark.slow
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
def test_sql_accesses_nothing_else(state, query):
    with pytest.raises(ConfigError):
        ask_sql(opened(), query)
