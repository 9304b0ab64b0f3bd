"""The view of jobs in Airflow's UI: who may see which job, and what is shown where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace

import airflow.api_fastapi.app as airflow_app
import psutil
import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager, init_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import delete

from headrace import clock
from headrace.airflow import _view_pages
from headrace.airflow._timetable import HeadracePlugin
from headrace.airflow._view import view
from headrace.airflow._view_pages import MOST_PAGES, MOST_PROCESSES, MOST_WAITING, PageError, Pages, Written

HOSTILE = "<script>alert(1)</script>"
DAGS = {"flights", "flights_replay", "logbook", "foreign"}
RUN = "manual__2013-01-02T00:00:00+00:00"

# Writes what it was called with, and does what the file `behaviour` says.
PROGRAM = """
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
with open(here / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
behaviour = (here / "behaviour").read_text()
if behaviour == "hangs":
    (here / "pid").write_text(str(os.getpid()))
    time.sleep(600)
if behaviour == "leaves a child":
    import subprocess
    (here / "pid").write_text(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid))
if behaviour == "dies":
    os.kill(os.getpid(), 9)
if behaviour == "talks":
    print("no JSON at all")
    sys.exit(3)
if behaviour.startswith("refuses "):
    print(json.dumps({"error": "ConfigError", "message": behaviour.removeprefix("refuses ")}))
    sys.exit(2)
while not (here / "go").exists():
    time.sleep(0.01)
(file,) = [word.removeprefix("--out=") for word in sys.argv if word.startswith("--out=")]
Path(file).write_text("page of " + sys.argv[-1])
print(behaviour if behaviour.startswith("{") else "{}")
"""


class SomeDags(SimpleAuthManager):
    """Users read the DAGs that their names have, apart from `admin`."""

    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        dag_id = getattr(details, "id", None)
        return method == "GET" and (user.username == "admin" or dag_id is None or dag_id in user.username.split("+"))


@pytest.fixture(autouse=True)
def airflow_of_users(monkeypatch):
    """Let Airflow ask `SomeDags`."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", f"{SomeDags.__module__}.{SomeDags.__qualname__}")
    monkeypatch.setenv(
        "AIRFLOW__API_AUTH__JWT_SECRET", "of this test, as long as it has to be for its kind of signature: 64 bytes"
    )
    purge_cached_app()
    yield
    purge_cached_app()


@pytest.fixture(scope="module", autouse=True)
def dags(airflow_database):
    """Store DAGs, and a run of each."""
    now = datetime.now(UTC)
    with create_session() as session:
        session.merge(DagBundleModel(name="view"))
        session.flush()
        for dag in DAGS:
            session.merge(DagModel(dag_id=dag, bundle_name="view", fileloc="view.py"))
            session.flush()
            kinds = {"run_type": DagRunType.MANUAL, "triggered_by": DagRunTriggeredByType.TEST}
            session.add(DagRun(dag_id=dag, run_id=RUN, run_after=now, state="success", **kinds))
    yield
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id.in_(DAGS)))
        session.execute(delete(DagModel).where(DagModel.dag_id.in_(DAGS)))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a command `headrace` in place of ours; it goes through at once unless `go` is removed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "headrace").write_text(f"#!{sys.executable}\n{PROGRAM}")
    (folder / "headrace").chmod(0o755)
    (folder / "behaviour").write_text("writes")
    (folder / "go").touch()
    (folder / "calls").touch()
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    monkeypatch.setattr(_view_pages, "task_environment", lambda *_: {"PATH": path})
    return SimpleNamespace(
        folder=folder,
        behaves=(folder / "behaviour").write_text,
        calls=lambda: (folder / "calls").read_text().splitlines(),
    )


@pytest.fixture
def served():
    """Return a function that serves the view to a user, from processes that may take `longest` seconds."""
    pages = []

    def serve(user="admin", longest=60):
        root = FastAPI()
        pages.append(Pages(longest))
        root.mount("/headrace", view(pages[-1]))
        init_auth_manager()
        return logged_in(TestClient(root), user)

    yield serve
    for kept in pages:
        kept.close()


def logged_in(client, user):
    if user is not None:
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role="viewer"))
        client.cookies.set("_token", token)
    return client


def rows_of(*jobs):
    return json.dumps(
        {"jobs": [{"job": job, "problem": None, "checkpoint": 7, "hours_behind": 1234.5} for job in jobs]}
    )


PATHS = ("/headrace/", "/headrace/dags/flights", f"/headrace/dags/flights/runs/{RUN}")


@pytest.mark.parametrize("path", PATHS)
def test_anonymous_user_gets_nothing(home, served, program, path):
    assert served(None).get(path).status_code == 401
    assert program.calls() == []


@pytest.mark.parametrize("path", PATHS[1:])
def test_user_without_the_dag_is_refused(home, served, program, path):
    assert served("logbook").get(path).status_code == 403
    assert program.calls() == []


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("path", PATHS)
def test_no_route_takes_anything(home, served, program, method, path):
    assert getattr(served(), method)(path).status_code == 405
    assert program.calls() == []


@pytest.mark.parametrize("path", ["/headrace/docs", "/headrace/redoc", "/headrace/openapi.json"])
def test_view_describes_itself_to_nobody(home, served, path):
    assert served(None).get(path).status_code == 404


def test_list_has_readable_jobs_alone(home, served, program):
    program.behaves(rows_of("flights", "logbook"))
    client = served("logbook+foreign")
    shown = client.get("/headrace/").text
    assert 'href="dags/logbook"' in shown
    assert "flights" not in shown
    assert "flights" in logged_in(client, "admin").get("/headrace/").text
    assert len(program.calls()) == 1


def test_list_without_readable_jobs_starts_nothing(home, served, program):
    assert "no job whose DAG you may read" in served("foreign").get("/headrace/").text
    assert program.calls() == []


def test_replay_dag_shows_its_job(home, served, program):
    assert served("flights+flights_replay").get("/headrace/dags/flights_replay").text == "page of flights"


def test_run_of_a_replay_has_no_page(home, served, program):
    answer = served("flights+flights_replay").get(f"/headrace/dags/flights_replay/runs/{RUN}")
    assert (answer.status_code, program.calls()) == (404, [])
    assert "A replay commits on a branch" in answer.text


def test_child_of_a_command_delays_nobody(home, served, program):
    program.behaves("leaves a child")
    answer = served(longest=2).get("/headrace/dags/flights")
    assert (answer.status_code, "took longer than 2 s" in answer.text) == (504, True)
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(int((program.folder / "pid").read_text())).status() == psutil.STATUS_ZOMBIE


def test_replay_dag_opens_no_other_job(home, served, program):
    assert served("flights_replay").get("/headrace/dags/flights_replay").status_code == 403
    assert program.calls() == []


def test_foreign_dag_gets_one_line(home, served, program):
    answer = served().get("/headrace/dags/foreign")
    assert "'foreign' is not a DAG of Headrace" in answer.text.replace("&#x27;", "'")
    assert (answer.status_code, program.calls()) == (404, [])


@pytest.mark.parametrize(
    "name", ["--out=%2Ftmp%2Fx", "-h", "..%2Fflights", "%2E%2E", "flights%00", "flights%0A", "~", "*"]
)
def test_names_reach_no_command_unchecked(home, served, program, name):
    assert served().get(f"/headrace/dags/{name}").status_code == 404
    assert served().get(f"/headrace/dags/flights/runs/{name}").status_code == 404
    assert program.calls() == []


def test_run_is_an_argument_of_its_own(home, served, program):
    assert served().get(f"/headrace/dags/flights/runs/{RUN}").text == "page of flights"
    (call,) = program.calls()
    assert call.endswith(f"--json --run={RUN} -- flights")


@pytest.mark.parametrize("path", ["/headrace/dags/{}", "/headrace/dags/flights/runs/{}"])
def test_markup_in_a_name_is_text(home, served, program, path):
    answer = served().get(path.format("%3Cscript%3Ealert(1)%3C%2Fscript%3E"))
    assert HOSTILE not in answer.text


def test_markup_of_jobs_is_text(home, served, program):
    row = {
        "job": "flights",
        "problem": f"{HOSTILE}\"'",
        "checkpoint": HOSTILE,
        "committed_at": HOSTILE,
        "waiting": HOSTILE,
    }
    program.behaves(json.dumps({"jobs": [row]}))
    shown = served().get("/headrace/").text
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 4


def test_message_of_the_command_is_text(home, served, program):
    program.behaves(f"refuses job 'flights' has no checkpoint yet {HOSTILE}")
    answer = served().get("/headrace/dags/flights")
    assert answer.status_code == 404
    assert "has no checkpoint yet &lt;script&gt;" in answer.text


@pytest.mark.parametrize(("path", "status"), [(PATHS[1], 200), ("/headrace/dags/foreign", 404)])
def test_answers_are_for_airflows_pages_alone(home, served, program, path, status):
    answer = served().get(path)
    assert answer.status_code == status
    assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_second_view_starts_no_process(home, served, program):
    client = served()
    (log := home / "var" / "state" / "flights" / "checkpoints" / "_delta_log").mkdir(parents=True)
    (log / "00000000000000000007.json").touch()
    for _ in range(3):
        assert client.get(PATHS[1]).text == "page of flights"
    assert len(program.calls()) == 1
    (log / "00000000000000000008.json").touch()
    client.get(PATHS[1])
    assert len(program.calls()) == 2


def test_viewers_wait_for_one_process(home, served, program):
    client = served()
    (program.folder / "go").unlink()
    with ThreadPoolExecutor(8) as viewers:
        answers = [viewers.submit(client.get, PATHS[1]) for _ in range(8)]
        while not program.calls():
            threading.Event().wait(0.01)
        (program.folder / "go").touch()
        assert {answer.result().text for answer in answers} == {"page of flights"}
    assert len(program.calls()) == 1


@pytest.mark.parametrize(
    ("version", "seconds", "error", "longest"),
    [(None, 1, None, 30), (None, 17, None, 170), ("7", 1, None, 600), ("7", 1, PageError("gone", 502), 30)],
)
def test_pages_are_made_anew_in_time(monkeypatch, version, seconds, error, longest):
    now = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    entry = _view_pages._Entry(version, Future())
    assert entry.serves(version)  # the page is not there yet
    if error:
        entry.page.set_exception(error)
    else:
        entry.page.set_result(Written("", {}, 0, seconds))
    now += longest - 0.1  # it counts from the end: a page may take longer to make
    assert entry.serves(version)
    assert not entry.serves("8")
    now += 0.1
    assert not entry.serves(version)


def test_few_pages_are_kept(program, tmp_path):
    pages = Pages()
    command = _view_pages.Command(words=["--", "flights"], home=tmp_path)
    program.behaves("writes")
    for key in range(MOST_PAGES + 3):
        pages._asked(key, "1", lambda: command).result()
    assert len(pages._entries) == MOST_PAGES
    pages.close()


@pytest.mark.parametrize("is_of_one_job", [True, False])
def test_queue_of_pages_has_an_end(is_of_one_job):
    pages, gate = Pages(), threading.Event()
    for number in reversed(range(MOST_PROCESSES + MOST_WAITING)):
        pages._asked(0 if is_of_one_job else number, str(number) if is_of_one_job else "0", gate.wait)
    with pytest.raises(PageError, match="34 other pages are being made. Try again in a minute") as refused:
        pages._asked("one more", "1", gate.wait)
    assert refused.value.status == 503
    assert not pages._asked(0, "0", gate.wait).done()  # who asks for the same page waits for it
    gate.set()
    pages.close()


def test_hanging_process_is_ended(home, served, program):
    program.behaves("hangs")
    client = served(longest=1)
    answer = client.get(PATHS[1])
    assert answer.status_code == 504
    assert "headrace report -- flights" in answer.text
    with pytest.raises(ProcessLookupError):
        os.kill(int((program.folder / "pid").read_text()), 0)
    client.get(PATHS[1])
    assert len(program.calls()) == 1


def test_answer_without_jobs_is_named(home, served, program):
    answer = served().get("/headrace/")
    assert (answer.status_code, "has no list of jobs" in answer.text) == (502, True)


@pytest.mark.parametrize(("behaviour", "code"), [("dies", -9), ("talks", 3)])
def test_failed_process_is_named(home, served, program, behaviour, code):
    program.behaves(behaviour)
    answer = served().get(PATHS[1])
    assert (answer.status_code, f"exit code {code}" in answer.text) == (502, True)


def test_command_that_is_gone_is_named(home, served, tmp_path, monkeypatch):
    monkeypatch.setattr(_view_pages, "task_environment", lambda *_: {"PATH": str(tmp_path)})
    answer = served().get(PATHS[1])
    assert (answer.status_code, "cannot be started" in answer.text) == (502, True)


def test_closed_view_leaves_no_process(home, served, program):
    program.behaves("hangs")
    client = served()
    with ThreadPoolExecutor(1) as viewer:
        answer = viewer.submit(client.get, PATHS[1])
        while not (program.folder / "pid").exists():
            threading.Event().wait(0.01)
        client.app.routes[-1].app.state.pages.close()
        assert answer.result().status_code == 502


def test_five_hundred_jobs_are_one_process(home, served, program, monkeypatch):
    names = [f"job{number}" for number in range(500)]
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda *_, **__: {*names})
    for name in names:
        (home / "conf" / "jobs" / f"{name}.yaml").touch()
    program.behaves(rows_of(*names))
    assert served().get("/headrace/").text.count("<tr>") == 501
    assert len(program.calls()) == 1


def test_server_without_a_home_names_the_variable(served, program, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "nowhere"))
    answer = served().get("/headrace/")
    assert (answer.status_code, "set HEADRACE_HOME" in answer.text) == (503, True)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "gone"))
    assert "does not exist" in served().get(PATHS[1]).text


def test_home_above_the_dags_is_found(home, served, program, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME")
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(home / "dags"))
    assert served().get(PATHS[1]).text == "page of flights"


def test_own_command_names_jobs_without_checkpoints(home, served):
    client = served()
    listed = client.get("/headrace/").text
    assert listed.count("it never ran") == 2
    (home / "conf" / "jobs" / "logbook.yaml").write_text("job: [")
    assert "has no checkpoint yet" in client.get(PATHS[1]).text
    assert "logbook.yaml" in client.get("/headrace/dags/logbook").text


def test_plugin_brings_the_view_below_a_prefix(home, program, monkeypatch):
    monkeypatch.setattr(airflow_app, "API_ROOT_PATH", "/airflow/")
    program.behaves(rows_of("flights", "logbook"))
    client = TestClient(create_app(apps="core"))
    assert client.get("/airflow/headrace/").status_code == 401
    logged_in(client, "admin")
    assert 'href="dags/flights"' in client.get("/airflow/headrace/").text
    assert client.get("/airflow/headrace/dags/flights").text == "page of flights"
    assert client.get("/airflow/headrace/dags/logbook", headers={"Authorization": "Bearer x"}).status_code == 403


def test_addresses_of_views_are_relative():
    views = HeadracePlugin.external_views
    assert {view["destination"] for view in views} == {"nav", "dag", "dag_run", "task_instance"}
    assert len({view["url_route"] for view in views}) == len(views)
    assert all(view["href"].startswith("headrace/") for view in views)


def test_server_starts_without_the_view(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "headrace.airflow._view", None)
    assert HeadracePlugin().fastapi_apps == []
    assert "the view of Headrace is left out" in caplog.text


def test_other_services_import_no_web_framework():
    code = "import sys, headrace.airflow._timetable as t; t.HeadracePlugin(); print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
