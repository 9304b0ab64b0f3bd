"""`make airflow`: a port of its own, services that end, and answers that are not Airflow's."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.faulty_api import all_faults, faulty_api
from tests.unit.support.fuzzing import examples

SCRIPT = Path(__file__).resolve().parents[3] / "setup" / "airflow.py"


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Return the script as a module, for a home of its own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_HOME", str(home))
        patch.setenv("AIRFLOW_HOME", str(home / "var" / "airflow"))
        spec = importlib.util.spec_from_file_location("airflow_script", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    (home / "var" / "log").mkdir(parents=True)
    (home / "var" / "airflow").mkdir()
    return module


@pytest.fixture
def listener():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def test_port_in_use_is_replaced(script, listener, monkeypatch):
    monkeypatch.delenv("AIRFLOW_PORT", raising=False)
    monkeypatch.setattr(script, "USUAL_PORT", listener.getsockname()[1])
    port = script._port()

    assert port != script.USUAL_PORT
    assert not script._answers(port)


def test_address_of_a_killed_start_is_forgotten(script, monkeypatch):
    monkeypatch.delenv("AIRFLOW_DB", raising=False)
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql+psycopg2://airflow:x@127.0.0.1:1/postgres")
    script.DATABASE.write_text(os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    script._start_database(script.Services())
    assert not script.DATABASE.exists()
    assert os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("sqlite:///")


def test_process_that_still_ends_is_left(script, monkeypatch):
    def wait(seconds):
        raise psutil.TimeoutExpired(seconds)

    ending = SimpleNamespace(pid=0, status=lambda: psutil.STATUS_ZOMBIE, wait=wait)
    monkeypatch.setattr(script.psutil, "Process", lambda: SimpleNamespace(children=lambda: [ending]))
    script.Services().reap_others()


@pytest.mark.parametrize("kind", ["postgres", "mysql", ""])
def test_unknown_database_is_refused(script, monkeypatch, kind):
    monkeypatch.setenv("AIRFLOW_DB", kind)
    with pytest.raises(script.AirflowError, match="should be sqlite or postgresql"):
        script._start_database(script.Services())


def test_own_database_is_left_alone(script, monkeypatch):
    monkeypatch.setenv("AIRFLOW_DB", "postgresql")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql+psycopg2://a@b/c")
    services = script.Services()
    script._start_database(services)
    assert (services._processes, os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]) == (
        {},
        "postgresql+psycopg2://a@b/c",
    )


@pytest.mark.parametrize(("wanted", "sentence"), [(None, "is in use"), ("http", "should be the number of a port")])
def test_wanted_port_is_taken_or_refused(script, listener, monkeypatch, wanted, sentence):
    monkeypatch.setenv("AIRFLOW_PORT", wanted or str(listener.getsockname()[1]))
    with pytest.raises(script.AirflowError, match=sentence):
        script._port()


def test_foreign_listener_is_not_the_own_server(script, listener):
    port = listener.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert script._listens(os.getpid(), port)
        assert not script._listens(other.pid, port)
        other.communicate()
    assert not script._listens(other.pid, port)


@pytest.mark.parametrize(
    "name", ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__API__BASE_URL", "AIRFLOW__API__PORT"]
)
def test_address_of_another_airflow_is_overridden(script, monkeypatch, name):
    for variable in ("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__API__BASE_URL", "AIRFLOW__API__PORT"):
        monkeypatch.setenv(variable, "http://127.0.0.1:8080/of-another/")
    script._configure_port(8123)

    assert "8123" in os.environ[name]


@given(st.lists(all_faults, max_size=4))
@examples(30)
def test_health_survives_every_answer(script, faults):
    whole = {"scheduler": {"status": "healthy"}, "triggerer": {"status": None}, "dag_processor": None}
    with faulty_api(lambda *_: (200, whole)) as server:
        server.faults = list(faults)
        answers = [script._healthy(server.server_port) for _ in range(len(faults) + 1)]

    assert all(isinstance(answer, set) for answer in answers)
    assert answers[-1] == {"scheduler"}


def test_service_that_ends_is_started_again(script, capsys):
    services = script.Services()
    process = services.start("scheduler", sys.executable, "-c", "raise SystemExit(3)")
    for _ in range(script.MOST_RESTARTS):
        process.wait()
        services.keep_running()
        process = services._processes["scheduler"]
    process.wait()
    with pytest.raises(script.AirflowError, match="airflow scheduler ended with exit code 3, 4 times"):
        services.keep_running()

    assert capsys.readouterr().err.count("It is started again") == script.MOST_RESTARTS


def test_file_is_never_seen_in_part(script, tmp_path):
    file = tmp_path / "airflow.url"
    file.with_name("airflow.url.part").write_text("left by a killed process")
    script._write(file, "http://127.0.0.1:8123")

    assert file.read_text() == "http://127.0.0.1:8123"
    assert [path.name for path in tmp_path.iterdir()] == ["airflow.url"]
