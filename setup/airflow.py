"""Run Airflow on this machine until Ctrl-C: scheduler, DAG processor, triggerer, API server with UI; and the demo's weather.

    .venv/bin/python setup/environment.py .venv/bin/python setup/airflow.py      (`make airflow`)

The API server listens at port 8080, or at a free port if 8080 is taken; $AIRFLOW_PORT names another one. The scheduler starts
when the API server answers: tasks report to it. `--ready-file PATH` writes the server's address to PATH when all services
are healthy. Airflow's database is in var/airflow: SQLite, or with AIRFLOW_DB=postgresql a PostgreSQL that is started here; its services log to var/log/airflow-*.log. Ctrl-C (or SIGTERM) ends every
process started here, also those that Airflow's services leave behind, within 20 s: processes that survive the first
signal are killed. A killed run of a job leaves a consistent job, and Airflow starts it again the next time.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, NoReturn
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil

HOME = Path(os.environ["HEADRACE_HOME"])
AIRFLOW_HOME = Path(os.environ["AIRFLOW_HOME"])
LOGS = HOME / "var" / "log"
PASSWORDS = AIRFLOW_HOME / "simple_auth_manager_passwords.json.generated"
API_SERVER = "api-server"
BEFORE_THE_API = ("dag-processor",)
AFTER_THE_API = ("scheduler", "triggerer")
"""Services that send tasks and triggers to the API server: without it, an attempt of a task dies."""
USUAL_PORT = 8080
MOST_PORTS = 5
"""Ports that are tried, if another process takes each of them first."""
MOST_RESTARTS = 3
"""How often a service is started again. On SQLite, a service can end because another one holds the database."""
STARTS_WITHIN = 300.0
LAST_LINES = 30
ENDING = ((signal.SIGTERM, 4.0), (signal.SIGKILL, 4.0))
"""What is sent to all processes that are left after `POLITE` seconds, and how long they have, in seconds."""
POLITE = 6.0
BECOME_SUBREAPER, SIGNAL_AT_PARENTS_DEATH = 36, 1
"""Options of prctl(2)."""
CONNECTION = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
DATABASE = AIRFLOW_HOME / "database.url"
"""Address of the PostgreSQL that is started here, while it runs: `setup/environment.py` gives it to the command `airflow`."""
LIBC = ctypes.CDLL(None)


class AirflowError(Exception):
    """Airflow cannot be started, or has stopped; the message gives the reason."""


def main() -> int:
    """Start all services, wait for Ctrl-C, end all services; return the exit code."""
    parser = argparse.ArgumentParser(description="Run Airflow on this machine until Ctrl-C.")
    parser.add_argument(
        "--ready-file", type=Path, help="write the address of the API server to this file when it is ready"
    )
    ready_file: Path | None = parser.parse_args().ready_file
    for folder in (AIRFLOW_HOME, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    # Also if the parent ignores Ctrl-C, as a shell does for background processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    # Processes whose parent has died become children of this process, which ends all of them.
    LIBC.prctl(BECOME_SUBREAPER, 1, 0, 0, 0)
    if ready_file is not None:
        _end_with_parent()
    try:
        with (AIRFLOW_HOME / "running.lock").open("a") as lock:
            _refuse_second(lock)
            _run(ready_file)
    except AirflowError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _run(ready_file: Path | None) -> NoReturn:
    _configure()
    print(f"Starting Airflow (half a minute). Its logs are {_shown(LOGS)}/airflow-*.log. Ctrl-C ends it.", flush=True)
    services = Services()
    try:
        _start_database(services)
        _wait_for_end(_start("db", "airflow", "db", "migrate"))
        for name in BEFORE_THE_API:
            services.start(name, "airflow", name)
        port = _start_api_server(services)
        if "WEATHER_URL" not in os.environ:
            _start_weather(services)
        for name in AFTER_THE_API:
            services.start(name, "airflow", name)
        _watch(services, port, ready_file)
    finally:
        _end_all()
        DATABASE.unlink(missing_ok=True)


def _start_database(services: Services) -> None:
    """Start the database that $AIRFLOW_DB names, and tell it to all services. SQLite needs no start."""
    if DATABASE.exists():  # of a start that was killed
        if os.environ.get(CONNECTION) == DATABASE.read_text():
            del os.environ[CONNECTION]
        DATABASE.unlink()
    kind = os.environ.get("AIRFLOW_DB", "sqlite")
    if kind not in {"sqlite", "postgresql"}:
        raise AirflowError(f"AIRFLOW_DB is '{kind}', and should be sqlite or postgresql.")
    if kind == "sqlite" or CONNECTION in os.environ:
        # Services wait for each other's writes: five seconds, SQLite's default, are too few on a busy machine.
        os.environ.setdefault(CONNECTION, f"sqlite:///{AIRFLOW_HOME.absolute()}/airflow.db?timeout=60")
        return
    folder, port = AIRFLOW_HOME / "postgresql", _free_port()
    script = str(Path(__file__).with_name("postgres.py"))
    server = services.start("postgresql", sys.executable, script, str(folder), str(port))
    deadline = time.monotonic() + STARTS_WITHIN
    while not _answers(port):
        if server.poll() is not None or time.monotonic() > deadline:
            raise AirflowError(f"PostgreSQL did not start in {_shown(folder)}. {_last_lines('postgresql')}")
        time.sleep(0.2)
    password = (folder / "password").read_text()
    url = f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/postgres"
    os.environ[CONNECTION] = url
    _write(DATABASE, url)


class Services:
    """The running services, by name. A service that ends is started again, up to `MOST_RESTARTS` times."""

    def __init__(self) -> None:
        self._commands: dict[str, tuple[str, ...]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: Counter[str] = Counter()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a service."""
        self._commands[name] = command
        self._processes[name] = _start(name, *command)
        return self._processes[name]

    def keep_running(self) -> None:
        """Start each service again that has ended. Raises `AirflowError` for one that has ended too often."""
        for name, process in self._processes.items():
            if process.poll() is None:
                continue
            ended = f"airflow {name} ended with exit code {process.returncode}"
            if self._restarts[name] == MOST_RESTARTS:
                raise AirflowError(f"{ended}, {MOST_RESTARTS + 1} times. {_last_lines(name)}")
            self._restarts[name] += 1
            print(f"{ended}. It is started again: {_shown(_log(name))} says why.", file=sys.stderr, flush=True)
            self._processes[name] = _start(name, *self._commands[name], again=True)

    def reap_others(self) -> None:
        """Collect the exit codes of processes whose parent has died."""
        own = {process.pid for process in self._processes.values()}
        for process in psutil.Process().children():
            # The first thread of a JVM can have ended before the others: then it is collected at a later look.
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                if process.pid not in own and process.status() == psutil.STATUS_ZOMBIE:
                    process.wait(0)


def _configure() -> None:
    """Set the environment variables of Airflow's services; a variable that is set already wins."""
    _keep_off_proxies()
    if not PASSWORDS.exists():
        _write(PASSWORDS, json.dumps({"admin": secrets.token_urlsafe(12)}) + "\n")
    login = {"conn_type": "http", "login": "admin", "password": json.loads(PASSWORDS.read_text())["admin"]}
    settings = {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__API__HOST": "127.0.0.1",
        # Airflow's own ports may be those of another Airflow on this machine.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(_free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(_free_port()),
        # A run here lasts seconds: it ends sooner without the compiler for code that runs for long.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        # With this connection a degraded run gets a note.
        "AIRFLOW_CONN_HEADRACE_AIRFLOW_API": json.dumps(login),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _keep_off_proxies() -> None:
    """Let no process ask a proxy for a server on this machine."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))


def _configure_port(port: int) -> None:
    """Set the address of the API server for all services: tasks must not report to another Airflow."""
    address = f"http://127.0.0.1:{port}"
    os.environ["AIRFLOW__API__PORT"] = str(port)
    os.environ["AIRFLOW__API__BASE_URL"] = address
    os.environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = f"{address}/execution/"


def _start_api_server(services: Services) -> int:
    """Start the API server and wait until it answers; return its port.

    Another process may take the port between the check and the start: then the next port is tried, unless $AIRFLOW_PORT names it.
    """
    for _ in range(MOST_PORTS):
        port = _port()
        _configure_port(port)
        if _is_started(services.start(API_SERVER, "airflow", API_SERVER), port):
            return port
        if not _answers(port):
            break
    raise AirflowError(f"airflow {API_SERVER} ended before it answered. {_last_lines(API_SERVER)}")


def _start_weather(services: Services) -> None:
    """Start the weather service of the demo, at its usual port or a free one, and tell the jobs of this Airflow where it is."""
    ready_file = AIRFLOW_HOME / "weather.url"
    ready_file.unlink(missing_ok=True)
    module = ("-m", "pipelines.flights.weather_service", "--any-port", "--ready-file", str(ready_file))
    weather = services.start("weather", sys.executable, *module)
    deadline = time.monotonic() + STARTS_WITHIN
    while not ready_file.exists():
        if weather.poll() is not None or time.monotonic() > deadline:
            raise AirflowError(f"the weather service of the demo did not start. {_last_lines('weather')}")
        time.sleep(0.2)
    os.environ["WEATHER_URL"] = ready_file.read_text().strip()


def _is_started(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers at its port; return False if it has ended. Raises `AirflowError` after `STARTS_WITHIN`."""
    deadline = time.monotonic() + STARTS_WITHIN
    while server.poll() is None:
        if _listens(server.pid, port) and "metadatabase" in _healthy(port):
            return True
        if time.monotonic() > deadline:
            raise AirflowError(
                f"airflow {API_SERVER} did not answer within {STARTS_WITHIN:.0f} s. {_last_lines(API_SERVER)}"
            )
        time.sleep(0.2)
    return False


def _listens(pid: int, port: int) -> bool:
    """Return whether a process, or one of its descendants, listens at a port. Another process may listen there."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for listener in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                if any(
                    used.status == psutil.CONN_LISTEN and used.laddr.port == port
                    for used in listener.net_connections("inet")
                ):
                    return True
    return False


def _watch(services: Services, port: int, ready_file: Path | None) -> NoReturn:
    """Report when all services are healthy, and keep them running; raise `AirflowError` when that fails."""
    is_ready = False
    while True:
        services.keep_running()
        if not is_ready and (is_ready := {"scheduler", "dag_processor"} <= _healthy(port)):
            _say_ready(port)
            if ready_file is not None:
                _write(ready_file, f"http://127.0.0.1:{port}")
        services.reap_others()
        time.sleep(0.5)


def _say_ready(port: int) -> None:
    print(f"UI         http://127.0.0.1:{port}")
    if os.environ[CONNECTION].startswith("sqlite"):
        print(
            "Database   SQLite, enough for one person; it refuses requests while it is busy. With AIRFLOW_DB=postgresql, PostgreSQL."
        )
    print(f"Password   of user admin: in {_shown(PASSWORDS)}", flush=True)


def _write(file: Path, text: str) -> None:
    """Write a file at once, so that nobody reads a part of it."""
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(file)


def _end_all() -> None:
    """End the services, then all processes below this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    this = psutil.Process()
    services = this.children()
    if services:
        print(f"\nEnding Airflow's {len(this.children(recursive=True))} processes ...", flush=True)
    _send(signal.SIGTERM, services)
    psutil.wait_procs(services, timeout=POLITE)
    for number, seconds in ENDING:
        left = this.children(recursive=True)
        _send(number, left)
        psutil.wait_procs(left, timeout=seconds)
    if left := this.children(recursive=True):
        print(f"These still run: {', '.join(str(process.pid) for process in left)}", file=sys.stderr)


def _send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _start(name: str, *command: str, again: bool = False) -> subprocess.Popen[bytes]:
    """Start a command in a separate session: the terminal's Ctrl-C reaches only this process."""
    with _log(name).open("a" if again else "w") as log:
        return subprocess.Popen(
            command,
            cwd=HOME,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  this process has one thread
        )


def _end_with_parent() -> None:
    """Let this process get SIGTERM when its parent is killed: what a killed Airflow leaves would disturb the next one."""
    LIBC.prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGTERM, 0, 0, 0)


def _wait_for_end(migration: subprocess.Popen[bytes]) -> None:
    if migration.wait():
        raise AirflowError(f"`airflow db migrate` ended with exit code {migration.returncode}. {_last_lines('db')}")


def _port() -> int:
    """Return $AIRFLOW_PORT, else 8080 if it is free, else a free port. Raises `AirflowError` if something listens at $AIRFLOW_PORT."""
    wanted = os.environ.get("AIRFLOW_PORT")
    if wanted and not wanted.isdecimal():
        raise AirflowError(f"AIRFLOW_PORT is '{wanted}', and should be the number of a port, such as 8081.")
    port = int(wanted or USUAL_PORT)
    if not _answers(port):
        return port
    if wanted:
        raise AirflowError(f"Port {port} is in use. Without AIRFLOW_PORT, `make airflow` finds a free one.")
    return _free_port()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _refuse_second(lock: IO[str]) -> None:
    """Raise `AirflowError` if another process holds the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AirflowError(f"Airflow runs in {_shown(AIRFLOW_HOME)} already. End that one first (Ctrl-C).") from None


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _healthy(port: int) -> set[str]:
    """Return the parts of Airflow that the API server calls healthy; none if it gives no such answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=5) as answer:
            health = json.load(answer)
            return {part for part, about in health.items() if about and about["status"] == "healthy"}
    except HTTPError as error:
        error.close()
        return set()
    except (OSError, HTTPException, ValueError, TypeError, KeyError, AttributeError):
        return set()


def _last_lines(name: str) -> str:
    lines = _log(name).read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join((f"The last lines of {_shown(_log(name))}:\n", *lines))


def _log(name: str) -> Path:
    return LOGS / f"airflow-{name}.log"


def _shown(path: Path) -> str:
    return str(path.relative_to(HOME)) if path.is_relative_to(HOME) else str(path)


def _interrupt(_: int, __: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
