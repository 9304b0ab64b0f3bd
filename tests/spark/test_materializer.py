"""The materializer in real jobs: strategies, backends and parallelism change between runs, and rows expire."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.tables.schemas import STATE_TABLES
from tests.jobs.home import Home
from tests.jobs.lag_by_hand import LagByHand
from tests.jobs.outcome import checkpoints, live_rows, outcome, sink_rows
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand
from tests.jobs.short_lived import BUCKET, JOB, LIFETIMES

MINUTE = 60_000


def chosen(strategy: str) -> dict[str, Any]:
    thresholds = {"adaptive.threshold.high": 4, "adaptive.threshold.low": 2}
    return {"execution": {"upsert-materialize": {"strategy": strategy, **thresholds}}}


@pytest.mark.slow
def test_switching_a_jobs_strategy_keeps_its_history(home, run):
    runs = [
        ("legacy", 2, "rocksdb"),
        ("map", 2, "rocksdb"),
        ("adaptive", 3, "hashmap"),
        ("value", 3, "hashmap"),
        ("map", 1, "delta"),
        ("adaptive", 2, "rocksdb"),
        ("legacy", 2, "rocksdb"),
    ]
    write_days(home.input, range(len(runs)))
    for strategy, parallelism, backend in runs:
        home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}, **chosen(strategy)})
        run(home, parallelism=parallelism, backend=backend, max_batches=1)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(len(runs)))))


@pytest.fixture
def short_lived(tmp_path):
    """Makes homes with three files of readings, by name."""

    def make(name: str) -> Home:
        home = Home(tmp_path / name, JOB)
        rows = readings()
        for first in range(0, len(rows), 50):
            part = rows[first : first + 50]
            columns: dict[str, Any] = {field: [row[field] for row in part] for field in part[0]}
            columns["at"] = pa.array(columns["at"], pa.timestamp("ms", tz="UTC"))
            pq.write_table(pa.table(columns), home.input / f"{first:03d}.parquet")
        return home

    return make


def readings() -> list[dict[str, Any]]:
    """Two and a half hours of readings, corrections among them. Two of four sensors fall silent after an hour."""
    chance, rows, events = random.Random(3), [], []
    for seq in range(150):
        at = seq * MINUTE + chance.randrange(-3, 1) * MINUTE + 10 * 60 * MINUTE
        sensor = f"s{chance.randrange(4) if seq < 60 else chance.randrange(2)}"
        if events and chance.random() < 0.4:
            sensor, level = events.pop(chance.randrange(len(events)))
            kind = "-U"
        else:
            level = chance.randrange(5)
            events += [(sensor, level)] if sensor in {"s0", "s1"} else []
            kind = "+U"
        rows.append({"seq": seq, "at": at, "sensor": sensor, "level": level, "kind": kind})
    return rows


@pytest.mark.parametrize(
    "backend",
    ["rocksdb", pytest.param("hashmap", marks=pytest.mark.slow), pytest.param("delta", marks=pytest.mark.slow)],
)
def test_watermark_expires_rows_in_idle_keys_too(short_lived, run, backend):
    homes, results = [], []
    for strategy, parallelism, files in (("value", 1, 3), ("map", 2, 1), ("adaptive", 2, 2)):
        home = short_lived(strategy)
        home.configure({"sources": {"readings": {"max_files_per_batch": files}}, **chosen(strategy)})
        run(home, parallelism=parallelism, backend=backend)
        homes.append(home)
        results.append(outcome(home.config()))
    assert [result.sinks for result in results] == [results[0].sinks] * 3
    assert [result.state for result in results] == [results[0].state] * 3
    home = homes[-1]
    last = checkpoints(home.config())[-1]
    kept = {row[names("materializer_history").index("key")] for row in results[0].state["materializer_history"]}
    assert kept == {'"s0"', '"s1"'}  # the others were silent for more than an hour
    assert len(results[0].state["timers"]) == 2  # the next sweep of each of them
    assert len(sink_rows(home.config(), "levels")) == 4  # a row that expires emits nothing
    assert sum(checkpoint.metrics.get("expired", 0) for checkpoint in checkpoints(home.config())) > 0
    assert any("rows die after 1h" in str(row) for row in live_rows(home.config(), last, "quarantine"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    ["rocksdb", pytest.param("hashmap", marks=pytest.mark.slow), pytest.param("delta", marks=pytest.mark.slow)],
)
def test_lag_equals_a_computation_by_hand(short_lived, run, backend):
    expected = lagged_by_hand(readings())
    assert expected.unmatched > 0
    assert len(expected.table) > sum(map(len, expected.partitions.values())) > 0  # some rows died, and some live
    for name, strategies, parallelism in (("step_by_step", ["value", "map", "adaptive"], 2), ("at_once", ["map"], 1)):
        home = short_lived(name)
        for strategy in strategies:
            sources = {"readings": {"max_files_per_batch": 3 // len(strategies)}}
            home.configure({"pipeline": "tests.jobs.short_lived:lagging", "sources": sources, **chosen(strategy)})
            run(home, parallelism=parallelism, backend=backend, max_batches=1)
        output = [
            (before and before["seq"], row["level"], row["sensor"], row["seq"])
            for row, before in expected.table.values()
        ]
        assert sink_rows(home.config(), "levels") == sorted(output, key=repr)
        result = outcome(home.config())
        stored = [(row[names("materializer_history").index("key")]) for row in result.state["materializer_history"]]
        assert Counter(stored) == Counter(f'"{sensor}"' for sensor, rows in expected.partitions.items() for _ in rows)
        assert len(result.state["quarantine"]) == expected.unmatched


def lagged_by_hand(rows: list[dict[str, Any]]) -> LagByHand:
    """The table of the lag, with a watermark after every full bucket."""
    lag, latest, watermark = LagByHand(ttl=LIFETIMES // timedelta(milliseconds=1)), 0, None
    for number, row in enumerate(rows, 1):
        lag.take(row["sensor"], row["level"], row, retracts=row["kind"] == "-U", at=row["at"], clock=watermark)
        latest = max(latest, row["at"])
        if number % BUCKET == 0:
            watermark = latest - 1
    lag.end(watermark)
    return lag


def names(table: str) -> list[str]:
    """Return the columns of a table in `outcome`."""
    return sorted(set(STATE_TABLES[table].schema.names) - {"checkpoint_id", "deleted"})
