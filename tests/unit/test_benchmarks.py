"""The shared parts of all benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import end_to_end, late_retractions, log_growth, nexmark, state_look_ups
from benchmarks._large_job import LargeWorkload
from benchmarks._memory import Peak
from benchmarks._nexmark_turns import write_closing
from benchmarks._report import figure, report
from headrace.native import runs_in
from pipelines.nexmark.generator import Shape, write_events
from tests.jobs.home import PROJECT


def test_report_names_the_machine_and_its_packages(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report("speed", [figure("time", [3.0, 1.0, 2.0], "s")])
    written = json.loads((tmp_path / "benchmarks/out/speed.json").read_text())
    assert written["machine"]["packages"].keys() >= {"pyspark", "deltalake", "pyarrow"}
    assert written["machine"]["engine"] == runs_in
    assert written["figures"][0]["spread"] == [1.0, 2.0, 3.0]
    assert "time" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("name", ["async_io", "join_rows", "materializer", "scaling", "state"])
def test_benchmark_runs_on_little_data(name, tmp_path):
    shutil.copytree(PROJECT / "conf", tmp_path / "conf")
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / f"benchmarks/out/{name}.json").read_text())
    assert written["figures"]
    assert all(measured["value"] is not None for measured in written["figures"])


ORPHAN = """
import subprocess, sys, time
from pathlib import Path
from benchmarks._costs import measured

work = "import sys, time; from pathlib import Path\\n"
work += "while time.process_time() < 0.3: pass\\n"
work += "Path(sys.argv[1]).touch()"
parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])"
with measured() as cost:
    subprocess.run([sys.executable, "-c", parent, work, sys.argv[1]], check=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
print(cost.cpu)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems adopt no orphans")
def test_cpu_of_process_counts_whose_parent_has_ended(tmp_path):
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "done")]
    assert float(subprocess.check_output(command, text=True)) > 0.29


MADE = {
    "q0": {"job": {"cpu": [3.0, 1.0], "wall": [2.0, 2.0]}, "spark": {"cpu": [2.0, 2.0], "wall": [1.0, 1.0]}},
    "q3": {"job": {"cpu": [33.0], "wall": [2.0]}, "spark": {"cpu": [22.0], "wall": [10.0]}},
}


def test_nexmark_report_shows_ratios_and_missed_goals(capsys):
    Console(width=80).print(nexmark.shown(MADE, "stream"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["q0", "stateless", "2.00", "2.00", "1.00", "2.00", "1.00", "2.00"],
        ["q3", "join", "33.00", "22.00", "1.50", "1", "NO", "2.00", "10.00", "0.20"],
    ]
    ratio, *_ = nexmark.as_figures({"q3": MADE["q3"]}, "stream")
    assert (ratio["value"], ratio["goal"], ratio["met"]) == (1.5, "<= 1", False)


def test_nexmark_resumes_an_interrupted_measurement(tmp_path):
    for query, figures in MADE.items():
        nexmark.Figures(tmp_path / "figures.json").keep(query, figures)
    assert nexmark.Figures(tmp_path / "figures.json").of == MADE


@pytest.mark.parametrize("asked", [["--queries", "q99"], ["--files", "5"]])
def test_nexmark_refuses_invalid_measurements(asked, capsys):
    with pytest.raises(SystemExit):
        nexmark.options_of(asked)
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("table", ["persons", "auctions", "bids"])
def test_one_more_row_closes_the_windows(table, tmp_path):
    write_events(tmp_path, Shape(500), files=3)
    write_closing(tmp_path / table, tmp_path / "closing" / table)
    before, after = (pq.read_table(folder / table) for folder in (tmp_path, tmp_path / "closing"))
    assert after.slice(0, before.num_rows) == before
    [closing] = after.slice(before.num_rows).to_pylist()
    assert closing["date_time"] > max(before["date_time"].to_pylist()) + timedelta(days=3000)
    times = [file.stat().st_mtime for file in sorted((tmp_path / "closing" / table).iterdir())]
    assert times == sorted({*times})


def test_end_to_end_compares_turn_by_turn():
    options = SimpleNamespace(rows=1_000_000, keys=10, peers=["window + MERGE"])
    costs = {"rocksdb": [(9.0, 99.0), (1.0, 6.0), (1.0, 9.0)], "window + MERGE": [(9.0, 9.0), (2.0, 3.0), (2.0, 6.0)]}
    by_name = {row["name"]: row for row in end_to_end.figures(costs, {}, options)}
    ratio = by_name["rocksdb / window + MERGE, CPU"]
    assert (ratio["spread"], ratio["goal"], ratio["met"]) == ([1.5, 1.75, 2.0], "<= 1.00", False)
    assert by_name["rocksdb, CPU a record (1,000,000 rows on 10 keys)"]["spread"] == [6.0, 7.5, 9.0]


def test_late_retractions_take_back_live_rows():
    arriving = late_retractions.changes(2_000)
    last = {}
    for kind, key, *row in arriving:
        last[key] = (kind, tuple(row))
    by_arrival = {key: row for key, (kind, row) in last.items() if kind.startswith("+")}
    assert late_retractions.table_by_hand(arriving) != by_arrival
    assert arriving == late_retractions.changes(2_000)


def test_look_ups_have_a_row_of_every_key():
    rows = [row for part in state_look_ups.changes(200) for row in part.to_pylist()]
    assert {row["key"].encode(): row["value"].encode() for row in rows} == {
        state_look_ups.key(number): state_look_ups.value(number) for number in range(200)
    }


def test_peak_includes_the_largest_worker():
    holds = "import sys; held = b'x' * 100_000_000; print(len(held), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        peak = Peak()
        peak.look()
        worker.stdin.close()
    assert 100_000_000 < peak.worker < peak.tree


def test_large_job_is_checked_key_by_key(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks._large_job.ROWS_A_FILE", 1_000)
    job = LargeWorkload(tmp_path, 1_500)
    job.load()
    job.check()
    job.expected[1_234] += 1
    with pytest.raises(AssertionError, match="sums of keys from 0 on are wrong"):
        job.check()


def test_growth_compares_the_last_quarter_with_the_second():
    runs = [log_growth.Run(1, 1, 1, 1, files, 1, 1) for files in (9, 9, 20, 20, 30, 30, 24, 24)]
    ratios = {row["name"]: row for row in log_growth.growth_of(runs)}
    assert ratios["last / second quarter: files of the job"]["value"] == 1.2
    assert not ratios["last / second quarter: files of the job"]["met"]
