"""A complete Airflow: scheduler, API server, DAG processor and triggerer, each in its process, on one database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from headrace import clock
from tests.jobs.ports import free_port

PROJECT = Path(__file__).resolve().parents[3]
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
_PROGRAMS = Path(sys.executable).parent
_STARTS_WITHIN = 300
_ENDS_WITHIN = 30
_BUSY_FOR = 60
_MOST_RESTARTS = 3


class ApiError(Exception):
    """Airflow's API refuses a request. `status` is the HTTP status, `detail` the error text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


class Api:
    """Airflow's REST API, as the user admin."""

    def __init__(self, url: str) -> None:
        self._url, self._token = url, ""

    def log_in(self, password: str) -> None:
        """Get a token. Raises `OSError` while the server does not listen."""
        answer = self._send("POST", "/auth/token", {"username": "admin", "password": password})
        self._token = answer["access_token"]

    def get(self, path: str) -> Any:
        """Get a resource below /api/v2."""
        return self._send("GET", f"/api/v2{path}", None)

    def post(self, path: str, content: Mapping[str, Any]) -> Any:
        """Post to a resource below /api/v2."""
        return self._send("POST", f"/api/v2{path}", content)

    def patch(self, path: str, content: Mapping[str, Any]) -> Any:
        """Change a resource below /api/v2."""
        return self._send("PATCH", f"/api/v2{path}", content)

    def put(self, path: str) -> Any:
        """Put a resource below /api/v2 into another state."""
        return self._send("PUT", f"/api/v2{path}", {})

    def delete(self, path: str) -> None:
        """Delete a resource below /api/v2."""
        self._send("DELETE", f"/api/v2{path}", None)

    def _send(self, method: str, path: str, content: Mapping[str, Any] | None) -> Any:
        """Send a request, again while the server refuses it because its SQLite is busy (503)."""
        until = clock.monotonic() + _BUSY_FOR
        while True:
            try:
                return self._sent(method, path, content)
            except ApiError as error:
                if error.status != HTTPStatus.SERVICE_UNAVAILABLE or clock.monotonic() > until:
                    raise
            clock.sleep(1)

    def _sent(self, method: str, path: str, content: Mapping[str, Any] | None) -> Any:
        request = urllib.request.Request(  # noqa: S310  an address of this machine
            f"{self._url}{path}",
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={
                "Content-Type": "application/json",
                "Accept": "application/json",
                **({"Authorization": f"Bearer {self._token}"} if self._token else {}),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(error.code, error.read().decode()) from None


class Airflow:
    """A running Airflow. `home` is the project folder of its jobs, `dags` its folder of DAG files, `url` where it answers."""

    def __init__(self, folder: Path, home: Path, database: str) -> None:
        self.folder, self.home = folder, home
        self.dags = folder / "dags"
        self.dags.mkdir(parents=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.api = Api(self.url)
        self._passwords = folder / "passwords.json"
        self.environment = {**os.environ, **_settings(folder, home, database, self.url, self._passwords, port)}
        self.is_on_sqlite = database.startswith("sqlite")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all services; end all of them, also when a service does not start."""
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        # Tasks are forked from the scheduler, so they need not import its modules again.
        settings = "import airflow.providers.apache.spark.operators.spark_submit, headrace.airflow._dags\n"
        (self.folder / "config" / "airflow_local_settings.py").write_text(settings)
        self._passwords.write_text(json.dumps({"admin": "admin"}))
        self.command("db", "migrate")
        with ExitStack() as stack:
            stack.callback(self._end)
            for service in SERVICES:
                self._start(service)
            self.wait_for("the API server", self._answers, _STARTS_WITHIN)
            yield

    def _start(self, service: str) -> None:
        with (self.folder / f"{service}.log").open("ab") as log:
            self._processes[service] = subprocess.Popen(
                [str(_PROGRAMS / "airflow"), service],
                env=self.environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _check(self, service: str) -> None:
        """Fail if a service has ended. On SQLite, where one can end because another one holds the database, start it again."""
        if self._processes[service].poll() is None:
            return
        self._restarts[service] += 1
        assert self.is_on_sqlite, f"{service} has ended: {self._log(service)}"
        assert self._restarts[service] <= _MOST_RESTARTS, f"{service} has ended too often: {self._log(service)}"
        self._start(service)

    def command(self, *words: str) -> str:
        """Run `airflow WORDS`, and return what it prints."""
        done = subprocess.run(
            [str(_PROGRAMS / "airflow"), *words],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"airflow {' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def wait_for(self, what: str, condition: Any, seconds: float) -> Any:
        """Poll until `condition` returns a true value, and return that value.

        Fails after `seconds`, or when a service has ended.
        """
        until = clock.monotonic() + seconds
        while not (value := condition()):
            for service in SERVICES:
                self._check(service)
            assert clock.monotonic() < until, f"{what} did not come within {seconds:.0f} s\n{self._log('scheduler')}"
            clock.sleep(1)
        return value

    def _answers(self) -> bool:
        try:
            self.api.log_in("admin")
        except (OSError, ApiError):
            return False
        return True

    def log(self, service: str) -> str:
        """Return all that a service has logged."""
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def _log(self, service: str) -> str:
        return self.log(service)[-3000:]

    def _end(self) -> None:
        """End all services: each leads a process group, and processes left in the group are killed."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        until = clock.monotonic() + _ENDS_WITHIN
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - clock.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _settings(folder: Path, home: Path, database: str, url: str, passwords: Path, port: int) -> dict[str, str]:
    connection = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark3-submit"}}
    notes = {"conn_type": "http", "login": "admin", "password": "admin"}
    here = Path(__file__).parent
    return {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__SECRET_KEY": "of this test",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of this test, as long as it has to be for its kind of signature: 64 bytes",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_WITHOUT_SPARK": json.dumps(connection),
        "AIRFLOW_CONN_HEADRACE_AIRFLOW_API": json.dumps(notes),
        "HEADRACE_HOME": str(home),
        "HEADRACE_TEST_PATH": os.pathsep.join(map(str, [PROJECT / "engine", PROJECT])),
        "PYTHONPATH": os.pathsep.join(map(str, [PROJECT / "engine", PROJECT])),
        "PATH": os.pathsep.join([str(_PROGRAMS), str(here / "bin"), os.environ["PATH"]]),
    }
