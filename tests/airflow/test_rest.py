"""The package's calls of Airflow's API while it answers with errors, garbage, or not at all: no run fails for them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import urlsplit

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import clock
from headrace.airflow._notes import write_note
from headrace.airflow._order_of_runs import is_cancelled
from headrace.airflow._rest import AirflowApi, ApiError
from tests.jobs.faulty_api import all_faults, faulty_api, passing_faults

DAY = datetime(2013, 1, 10, tzinfo=UTC)
hypothesis.settings.register_profile("airflow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis.settings.load_profile("airflow")


class Log:
    def __init__(self):
        self.warnings = []

    def warning(self, text, *arguments):
        self.warnings.append(text % arguments)


@pytest.fixture(autouse=True, scope="module")
def virtual_time():
    with clock.installed(clock.VirtualClock()):
        yield


def connect(patch, server):
    connection = {"conn_type": "http", "host": "127.0.0.1", "port": server.server_port, "login": "bot"}
    patch.setenv("AIRFLOW_CONN_HEADRACE_AIRFLOW_API", json.dumps({**connection, "password": "right"}))


def context(run_type="backfill", date=DAY):
    return {
        "ti": SimpleNamespace(dag_id="flights", task_id="run", run_id="r1", map_index=-1),
        "dag_run": SimpleNamespace(run_type=run_type, logical_date=date),
    }


@given(st.lists(passing_faults, max_size=3))
@settings(max_examples=18)
def test_note_survives_passing_faults(faults):
    log = Log()
    with pytest.MonkeyPatch.context() as patch, faulty_api(lambda *_: (200, {})) as server:
        connect(patch, server)
        server.faults = list(faults)
        write_note(context(), "3 elements wait", log)

    notes = [body for method, _, body in server.requests if method == "PATCH"]
    assert log.warnings == []
    assert notes[-1] == {"note": "3 elements wait"}


@given(st.lists(all_faults, max_size=20))
@settings(max_examples=25)
def test_no_answer_of_the_api_fails_a_run(faults):
    log = Log()
    with pytest.MonkeyPatch.context() as patch, faulty_api(lambda *_: (200, {})) as server:
        connect(patch, server)
        server.faults = list(faults)
        write_note(context(), "3 elements wait", log)
        server.faults = list(faults)
        assert is_cancelled(context(), log) in {True, False}

    assert len(log.warnings) <= 2


timestamps = st.one_of(
    st.none(), st.just("soon"), st.integers(), st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
)
backfills = st.lists(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("from_date", "to_date", "completed_at"), timestamps))
)


@given(timestamps, st.one_of(st.none(), st.text(), backfills, st.lists(st.integers())))
@settings(max_examples=25)
def test_strange_backfills_are_no_cancelled_ones(queued, strange):
    def answers(_, path, __):
        return 200, {"backfills": strange} if "backfills" in path else {"queued_at": queued}

    with pytest.MonkeyPatch.context() as patch, faulty_api(answers) as server:
        connect(patch, server)
        assert is_cancelled(context(), Log()) in {True, False}


HOURS = st.integers(-3, 3)


@given(st.lists(st.tuples(HOURS, HOURS, st.none() | HOURS), max_size=4), HOURS)
@settings(max_examples=31)
def test_backfill_closed_after_queueing_was_cancelled(drawn, queued):
    def timestamp(hours):
        return (DAY + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")

    listed = [
        {
            "id": n,
            "from_date": timestamp(first),
            "to_date": timestamp(last),
            "completed_at": closed and timestamp(closed),
        }
        for n, (first, last, closed) in enumerate(drawn)
    ]

    def answers(_, path, __):
        return 200, {"backfills": listed} if urlsplit(path).path.endswith("/backfills") else {
            "queued_at": timestamp(queued)
        }

    by_hand = any(first <= 0 <= last and closed and closed > queued for first, last, closed in drawn)
    with pytest.MonkeyPatch.context() as patch, faulty_api(answers) as server:
        connect(patch, server)
        assert is_cancelled(context(), Log()) is bool(by_hand)


@pytest.mark.parametrize("run", [context("scheduled"), context("manual"), context(date=None)])
def test_other_runs_ask_nobody(run, monkeypatch):
    with faulty_api(lambda *_: (200, {})) as server:
        connect(monkeypatch, server)
        assert not is_cancelled(run, Log())

    assert server.requests == []


def test_without_a_connection_no_backfill_is_cancelled():
    assert not is_cancelled(context(), Log())


def test_refusal_for_good_is_asked_once(monkeypatch):
    with faulty_api(lambda *_: (403, {"detail": "no"})) as server:
        connect(monkeypatch, server)
        with pytest.raises(ApiError, match="403 Forbidden"):
            AirflowApi.connected().get("/backfills", dag_id="flights")
        assert len(server.requests) == 2
