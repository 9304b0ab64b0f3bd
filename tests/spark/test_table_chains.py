"""A job reads a table that another job merges into, also through Spark."""

from __future__ import annotations

from collections import Counter

import pytest
from deltalake import DeltaTable

from headrace.errors import SourceError
from tests.jobs.home import Home
from tests.jobs.outcome import sink_rows
from tests.jobs.purchase_files import write_days
from tests.unit.support.table_job import FEED

QUICK = {"parallelism": 1, "backend": "hashmap"}


def follower(home, folder, **source):
    """The job that reads the first one's board."""
    bound = {"format": "delta", "path": str(home.folder / "lake" / "lines_by_item"), **source}
    return Home(
        folder,
        {
            "job": "follower",
            "pipeline": f"tests.jobs.follower:{'changes' if source.get('change_feed') else 'appends'}",
            "state": {"root": "state", "local": "local"},
            "sources": {"lines": bound},
            "sinks": {"seen": {"path": "lake/seen", "mode": "append"}},
        },
    )


def board(home):
    return Counter((item, cents) for _, cents, *_, item in sink_rows(home.config(), "lines_by_item"))


def seen(home):
    """Return the table that the changes add up to."""
    rows = Counter()
    for cents, item, kind in sink_rows(home.config(), "seen"):
        rows[item, cents] += -1 if kind in {"-U", "-D"} else 1
    assert min(rows.values()) >= 0
    return +rows


@pytest.mark.slow
def test_next_job_reads_merged_sinks_changes(home, run, spark, tmp_path):
    write_days(home.input, range(1))
    home.configure({"publish": {"spark_above_rows": 0}, "sources": {"purchases": {"max_files_per_batch": 1}}})
    run(home, **QUICK)
    path = home.config().sinks["lines_by_item"].path
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    assert DeltaTable(path).metadata().configuration.items() >= FEED.items()
    two = follower(home, tmp_path / "two", change_feed=True, start="snapshot")
    run(two, **QUICK)
    assert seen(two) == board(home)
    for days in (range(1, 2), range(2, 3)):
        write_days(home.input, days)
        run(home, **QUICK)
        run(two, **QUICK)
        assert seen(two) == board(home)
    first = DeltaTable(path).version()
    spark.sql(f"DELETE FROM delta.`{path}` WHERE item = 'apples'")
    run(two, **QUICK)
    assert seen(two) == board(home)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {first}")
    run(two, **QUICK)
    assert seen(two) == board(home)
    with pytest.raises(SourceError, match=r"\((MERGE|DELETE)\) removes or rewrites rows"):
        run(follower(home, tmp_path / "three"), **QUICK)
