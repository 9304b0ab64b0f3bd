"""`headrace alerts`, and what a run tells whom: once when an alert begins, and once when it ends."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable

from headrace import clock
from headrace.cli import alerts
from headrace.cli.findings import Finding
from headrace.config import load_job
from headrace.errors import ConfigError
from tests.unit.support.demo_job import START

HOUR = 3_600_000
DAY = 24 * HOUR
RUN = "run --runner local --json"


@pytest.fixture(autouse=True)
def later():
    """Return a function that moves the clock on. It begins an hour after the first event."""
    moved = clock.VirtualClock(START + HOUR)
    with clock.installed(moved):
        yield moved.advance


@pytest.fixture
def change(home):
    """Return a function that changes keys of the job's file."""
    file = home / "conf/jobs/demo.yaml"

    def write(**keys):
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **keys}))

    write(watermark={"bucket": 1})
    return write


@pytest.fixture
def deliver(home):
    """Return a function that adds a file of events: their keys, and their time."""

    def add(name, *tails, at=START):
        pq.write_table(
            pa.table({"tail": pa.array(tails, pa.string()), "at": [at] * len(tails)}), home / f"events/{name}.parquet"
        )

    return add


@pytest.fixture
def messages(home, change):
    """Return a function that gives what a command was told since the last call."""
    file = home / "told.jsonl"
    program = f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read() + chr(10))"
    change(tell={"command": [sys.executable, "-c", program]})

    def read():
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [(alert["metric"], alert["is_raised"]) for alert in map(json.loads, lines)]

    return read


def states(result):
    assert result.exit_code == 0, result.output
    return {alert["metric"]: alert["state"] for alert in json.loads(result.stdout)["alerts"]}


@pytest.mark.slow
def test_alert_is_sent_at_begin_and_end(headrace, change, deliver, messages, later):
    change(alerts={"lag": "> 2h", "rows_in": "< 1"})
    deliver("2013-02-01", "N1")
    assert states(headrace(RUN)) == {"lag": "quiet", "rows_in": "quiet"}
    assert messages() == []

    later(3 * HOUR)
    for _ in range(2):
        assert states(headrace("alerts --tell --json")) == {"lag": "raised", "rows_in": "quiet"}
    assert messages() == [("lag", True)]

    deliver("2013-02-02", "N1", at=START + 4 * HOUR)
    for _ in range(2):
        assert states(headrace(RUN)) == {"lag": "quiet", "rows_in": "quiet"}
    assert messages() == [("lag", False)]


def test_look_alone_sends_no_message(headrace, change, deliver, messages, later):
    change(alerts={"lag": "> 2h"})
    deliver("2013-02-01", "N1")
    headrace(RUN)
    later(3 * HOUR)
    assert states(headrace("alerts --json")) == {"lag": "raised"}
    assert messages() == []
    result = headrace("alerts")
    assert "> 2h" in result.stdout
    assert "raised" in result.stdout


def test_failing_run_sends_alerts(headrace, home, change, deliver, messages, later):
    change(alerts={"lag": "> 2h"})
    deliver("2013-02-01", "N1")
    headrace(RUN)
    later(3 * HOUR)
    (home / "events/2013-02-02.parquet").write_bytes(b"no parquet")
    result = headrace(RUN)
    assert (result.exit_code, messages()) == (7, [("lag", True)])
    assert "alert: job 'demo': lag is 4 h, that raises an alert (> 2h). More: headrace status demo" in result.stderr


def test_failed_command_gets_the_alert_later(headrace, change, deliver, later, home):
    file = home / "up"
    program = f"import sys, os; sys.exit('pager is down' if not os.path.exists({str(file)!r}) else 0)"
    change(alerts={"lag": "> 2h"}, tell={"command": [sys.executable, "-c", program]})
    deliver("2013-02-01", "N1")
    headrace(RUN)
    later(3 * HOUR)
    down = headrace("alerts --tell")
    assert (down.exit_code, down.stderr.count("lag is 4 h")) == (0, 1)
    assert "tell.command was not told, and is at the next look: it ended with exit code 1: pager is down" in down.stderr
    file.touch()
    up = headrace("alerts --tell")
    assert (up.exit_code, up.stderr) == (0, "")
    assert headrace("alerts --tell").stderr == ""


class PagerServer(HTTPServer):
    """A server that keeps the bodies of its requests, and answers with a code."""

    bodies: list[object]
    code: int


class Pager(BaseHTTPRequestHandler):
    server: PagerServer

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.code)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def pager():
    server = PagerServer(("127.0.0.1", 0), Pager)
    server.bodies, server.code = [], 200
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_webhook_gets_alert_and_is_never_shown(headrace, change, deliver, later, pager, monkeypatch):
    monkeypatch.setenv("PAGER", f"http://127.0.0.1:{pager.server_port}/hush")
    change(alerts={"lag": "> 2h"}, tell={"webhook": "${PAGER}"})
    deliver("2013-02-01", "N1")
    headrace(RUN)
    later(3 * HOUR)
    pager.code = 503
    refused = headrace("alerts --tell")
    assert "tell.webhook was not told, and is at the next look: it answered with 503" in refused.stderr
    pager.code = 204
    assert headrace("alerts --tell").exit_code == 0
    first, second = pager.bodies
    assert first == second
    assert (first["job"], first["metric"], first["is_raised"], first["value"]) == ("demo", "lag", True, 4 * HOUR + 1)
    shown = [refused, *(headrace(words) for words in ("check", "jobs --json", "explain demo", "alerts"))]
    assert all("hush" not in result.output for result in shown)


def test_table_has_all_messages(headrace, home, change, deliver, messages, later):
    change(alerts={"lag": "> 2h"})
    deliver("2013-02-01", "N1")
    headrace(RUN)
    later(3 * HOUR)
    headrace("alerts --tell")
    rows = DeltaTable(str(home / "var/state/demo/alerts")).to_pyarrow_table().sort_by("recipient").to_pylist()
    assert [(row["recipient"], row["metric"], row["condition"], row["is_raised"], row["value"]) for row in rows] == [
        ("command", "lag", "> 2h", True, 4 * HOUR + 1),
        ("log", "lag", "> 2h", True, 4 * HOUR + 1),
    ]
    assert {row["sent_at"] for row in rows} == {datetime.fromtimestamp((START + 4 * HOUR) / 1000, UTC)}
    assert headrace("verify").exit_code == 0
    assert headrace("maintain demo --files").exit_code == 0


@pytest.mark.parametrize(
    ("condition", "state"),
    [
        ("> 50 % of rows", "quiet"),
        (">= 50 % of rows", "raised"),
        ("> 1", "quiet"),
        (">= 1", "raised"),
        ("<= 0", "quiet"),
    ],
)
def test_share_of_rows_is_of_the_run(headrace, change, deliver, condition, state):
    change(alerts={"quarantined": condition})
    deliver("2013-02-01", "N1", None)
    assert states(headrace(RUN)) == {"quarantined": state}


@pytest.mark.parametrize("metric", ["lag", "waiting", "waiting_for", "state", "rows_in"])
def test_job_without_checkpoint_raises_nothing(headrace, change, metric):
    change(alerts={metric: "< 100"})
    assert states(headrace("alerts --tell --json")) == {metric: "unknown"}


@pytest.mark.slow
def test_growth_begins_at_an_earlier_checkpoint(headrace, home, change, deliver, later):
    code = home / "demo_cli_pipeline.py"
    code.write_text(code.read_text().replace("        ...", "        await self.last_leg.update(record.tail)"))
    change(alerts={"state": "> 0", "state_growth": "> 20 % a day"})
    deliver("2013-02-01", "N1")
    assert states(headrace(RUN)) == {"state": "raised", "state_growth": "unknown"}
    later(DAY + HOUR)
    assert states(headrace("alerts --json")) == {"state": "raised", "state_growth": "quiet"}
    deliver("2013-02-02", *(f"N{number}" for number in range(500)), at=START + DAY)
    assert states(headrace(RUN)) == {"state": "raised", "state_growth": "raised"}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"alerts": {"lagg": "> 2h"}}, "alerts.lagg: no such metric; did you mean 'lag'?"),
        ({"alerts": {"lag": "2h"}}, "alerts.lag: '2h' is no condition: write a sign and a number, such as '> 2h'"),
        ({"alerts": {"lag": "> 2 GB"}}, "alerts.lag: '> 2 GB': 'GB' does not fit ms: write it as '> 2h'"),
        ({"alerts": {"late": "> 3 % of row"}}, "alerts.late"),
        ({"alerts": {"late": ">> 3"}}, "alerts.late"),
        ({"alerts": {"waiting": "> 1 % of rows"}}, "alerts.waiting"),
        ({"alerts": {"late": "> 3"}, "tell": {"webhook": "http://[x/y"}}, "tell.webhook: it has to begin with http"),
        ({"alerts": {"late": "> -3"}}, "alerts.late"),
        ({"alerts": {"late": "> nan"}}, "alerts.late"),
        ({"alerts": {"state_growth": "> 3 %"}}, "write it as '> 20 % a week'"),
        ({"alerts": {"open_until": "> 3"}}, "alerts.open_until: no such metric"),
        ({"tell": {"command": ["page"]}}, "tell.command: nobody is told of anything without `alerts`"),
        ({"alerts": {"late": "> 3"}, "tell": {"webhook": "ftp://x"}}, "tell.webhook: it has to begin with http"),
    ],
)  # fmt: skip
def test_wrong_alert_is_refused_with_its_line(headrace, change, keys, problem):
    change(**keys)
    result = headrace("check")
    assert result.exit_code == 2
    assert problem in " ".join((result.output + str(result.exception)).split())


def test_metrics_of_alerts_are_listed(headrace):
    listed = json.loads(headrace("alerts --metrics --json").stdout)["metrics"]
    assert {"lag", "waiting_for", "state_growth", "quarantined", "failures"} <= {metric["metric"] for metric in listed}


BROKEN = {
    "bytes": [sys.executable, "-c", "import sys; sys.stderr.buffer.write(bytes([255])); sys.exit(1)"],
    "no program": ["/no/such/program", "hush"],
}


@pytest.mark.parametrize("command", BROKEN.values(), ids=BROKEN)
def test_broken_command_fails_no_run(headrace, change, deliver, command):
    change(alerts={"rows_in": "> 0"}, tell={"command": command})
    deliver("2013-02-01", "N1")
    assert states(result := headrace(RUN)) == {"rows_in": "raised"}
    assert "tell.command was not told" in result.stderr
    assert "hush" not in result.stderr


@pytest.mark.slow
def test_slow_command_is_not_shown(headrace, change, deliver, monkeypatch):
    monkeypatch.setitem(alerts._PATIENCE, "command", 0.2)
    change(alerts={"rows_in": "> 0"}, tell={"command": [sys.executable, "-c", "import time; time.sleep(60) # hush"]})
    deliver("2013-02-01", "N1")
    assert states(result := headrace(RUN)) == {"rows_in": "raised"}
    assert "it took longer than" in result.stderr
    assert "hush" not in result.stderr


@pytest.mark.parametrize("conditions", [{"rows_in": "> 0"}, {}])
def test_look_that_breaks_fails_no_run(headrace, change, deliver, monkeypatch, conditions):
    def look(*_):
        raise RuntimeError("hush")

    monkeypatch.setattr(alerts, "look", look)
    change(alerts=conditions)
    deliver("2013-02-01", "N1")
    result = headrace(RUN)
    assert (result.exit_code, json.loads(result.stdout)["alerts"]) == (0, [])
    sentence = "this look at them failed, and the next one tells: RuntimeError"
    assert (sentence in result.stderr) == bool(conditions)


@pytest.mark.slow
def test_failed_check_sends_alerts(headrace, change, deliver, messages, later, monkeypatch):
    def broken(*_, **__):
        raise ConfigError("the pipeline is broken")

    change(alerts={"lag": "> 2h"})
    deliver("2013-02-01", "N1")
    headrace(RUN)
    later(3 * HOUR)
    monkeypatch.setattr("headrace.cli.run_steps.findings_of", broken)
    assert headrace(f"{RUN} --check").exit_code == 2
    assert messages() == [("lag", True)]


@pytest.mark.slow
def test_failed_verification_leaves_airflow_for_later(headrace, change, deliver, monkeypatch, tmp_path):
    change(alerts={"rows_in": "> 0"}, airflow={"on_alert": "pager:tell"})
    deliver("2013-02-01", "N1")
    report = tmp_path / "report.json"
    with monkeypatch.context() as patch:
        patch.setattr("headrace.cli.run_steps.verified", lambda _: [Finding("sink board", "fail", "it is gone")])
        assert headrace(f"{RUN} --verify --report {report}").exit_code == 1
    for calls in True, False:
        headrace(f"{RUN} --verify --report {report}")
        (alert,) = json.loads(report.read_text())["alerts"]
        assert alert["calls_airflow"] is calls


def test_long_times_are_conditions(headrace, change):
    change(alerts={"lag": "> 1234567s"})
    assert states(headrace("alerts --json")) == {"lag": "unknown"}


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirect_is_no_answer_of_webhook(headrace, change, deliver, later, pager, monkeypatch, code):
    monkeypatch.setenv("PAGER", f"http://127.0.0.1:{pager.server_port}/secret")
    change(alerts={"lag": "> 2h"}, tell={"webhook": "${PAGER}"})
    deliver("2013-02-01", "N1", "N2")
    headrace(RUN)
    pager.code = code
    later(DAY)
    redirected = headrace("alerts demo --tell")
    assert f"tell.webhook was not told, and is at the next look: it answered with {code}" in redirected.stderr
    pager.code = 200
    assert headrace("alerts demo --tell").exit_code == 0
    assert pager.bodies[0] == pager.bodies[1]


@pytest.mark.slow
@pytest.mark.parametrize("others", [{}, {"rows_in": "> 1000"}])
def test_removed_alert_ends_at_the_next_look(headrace, home, change, deliver, messages, later, others):
    change(alerts={"lag": "> 2h", **others})
    deliver("2013-02-01", "N1", "N2")
    headrace(RUN)
    later(DAY)
    headrace("alerts demo --tell")
    assert messages() == [("lag", True)]
    change(alerts=others, **({} if others else {"tell": {}}))
    later(HOUR)
    headrace(RUN)
    ended = {("lag", False)} if others else set()
    assert set(messages()) == ended
    rows = DeltaTable(str(home / "var/state/demo/alerts")).to_pyarrow_table().sort_by("sent_at").to_pylist()
    assert {row["recipient"]: row["is_raised"] for row in rows}["log"] is False


def test_slow_telling_ends_with_the_look(headrace, change, deliver, messages, later, monkeypatch):
    change(alerts={"lag": "> 2h"})
    deliver("2013-02-01", "N1", "N2")
    headrace(RUN)
    later(DAY)
    monkeypatch.setattr(alerts, "_LONGEST_LOOK", 0.0)
    result = headrace("alerts demo --tell")
    assert "tell.command was not told, and is at the next look: telling others took" in result.stderr
    monkeypatch.undo()
    assert messages() == []


def test_unset_secret_breaks_no_dag(headrace, home, change, monkeypatch):
    monkeypatch.delenv("PAGER", raising=False)
    change(alerts={"lag": "> 2h"}, tell={"webhook": "${PAGER}", "command": ["page", "${PAGER}"]})
    config = load_job("demo", home, keep_references=True)
    assert (config.tell.webhook, config.tell.command) == ("${PAGER}", ("page", "${PAGER}"))
    with pytest.raises(ConfigError, match="environment variable PAGER is not set"):
        load_job("demo", home)
