"""What all benchmarks share."""

from __future__ import annotations

import json

from benchmarks._report import figure, report


def test_report_names_the_machine_and_its_packages(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report("speed", [figure("time", [3.0, 1.0, 2.0], "s")])
    written = json.loads((tmp_path / "benchmarks/out/speed.json").read_text())
    assert written["machine"]["packages"].keys() >= {"pyspark", "deltalake", "pyarrow"}
    assert written["figures"][0]["spread"] == [1.0, 2.0, 3.0]
    assert "time" in capsys.readouterr().out
