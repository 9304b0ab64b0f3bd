"""Run Airflow on this machine until Ctrl-C: scheduler, DAG processor, triggerer, API server with UI; and the demo's weather.

    .venv/bin/python setup/environment.py .venv/bin/python setup/airflow.py      (`make airflow`)

Airflow's database is SQLite in var/airflow, its services log to var/log/airflow-*.log. Ctrl-C (or SIGTERM) ends every
process started here, also those that Airflow's services leave behind, within 20 s: processes that survive the first
signal are killed. A killed run of a job leaves a consistent job, and Airflow starts it again the next time.
"""

from __future__ import annotations

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
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn
from urllib.error import URLError
from urllib.request import urlopen

import psutil

HOME = Path(os.environ["HEADRACE_HOME"])
AIRFLOW_HOME = Path(os.environ["AIRFLOW_HOME"])
LOGS = HOME / "var" / "log"
PASSWORDS = AIRFLOW_HOME / "simple_auth_manager_passwords.json.generated"
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
WEATHER_PORT = 8013
LAST_LINES = 30
ENDING = ((signal.SIGTERM, 4.0), (signal.SIGKILL, 4.0))
"""What is sent to all processes that are left after `POLITE` seconds, and how long they have, in seconds."""
POLITE = 6.0
BECOME_SUBREAPER = 36


class AirflowError(Exception):
    """Airflow cannot be started, or has stopped; the message gives the reason."""


def main() -> int:
    """Start all services, wait for Ctrl-C, end all services; return the exit code."""
    for folder in (AIRFLOW_HOME, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    # Also if the parent ignores Ctrl-C, as a shell does for background processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    # Processes whose parent has died become children of this process, which ends all of them.
    ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)
    try:
        with (AIRFLOW_HOME / "running.lock").open("a") as lock:
            _refuse_second(lock)
            _run(_port())
    except AirflowError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _run(port: int) -> NoReturn:
    _configure(port)
    print(f"Starting Airflow (half a minute). Its logs are {_shown(LOGS)}/airflow-*.log. Ctrl-C ends it.", flush=True)
    try:
        _wait_for_end(_start("db", "airflow", "db", "migrate"))
        services = {name: _start(name, "airflow", name) for name in SERVICES}
        if "WEATHER_URL" not in os.environ and not _answers(WEATHER_PORT):
            module = "pipelines.flights.weather_service"
            services["weather"] = _start("weather", sys.executable, "-m", module, "--port", str(WEATHER_PORT))
        _watch(services, port)
    finally:
        _end_all()


def _configure(port: int) -> None:
    """Set the environment variables of Airflow's services; a variable that is set already wins."""
    address = f"http://127.0.0.1:{port}"
    if not PASSWORDS.exists():
        PASSWORDS.touch(mode=0o600)
        PASSWORDS.write_text(json.dumps({"admin": secrets.token_urlsafe(12)}) + "\n")
    login = {"conn_type": "http", "login": "admin", "password": json.loads(PASSWORDS.read_text())["admin"]}
    settings = {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        # The flights are of 2013. A run that is due tonight would take in all of them at once.
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        # A run here lasts seconds: it ends sooner without the compiler for code that runs for long.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        # With this connection a degraded run gets a note.
        "AIRFLOW_CONN_HEADRACE_AIRFLOW_API": json.dumps(login),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _watch(services: dict[str, subprocess.Popen[bytes]], port: int) -> NoReturn:
    """Report when the UI is ready, and wait until a service ends; raise `AirflowError` then."""
    is_ready = False
    while True:
        for name, service in services.items():
            if service.poll() is not None:
                raise AirflowError(f"airflow {name} ended with exit code {service.returncode}. {_last_lines(name)}")
        if not is_ready and (is_ready := _is_healthy(port)):
            _say_ready(port)
        _reap({service.pid for service in services.values()})
        time.sleep(0.5)


def _say_ready(port: int) -> None:
    print(f"UI         http://127.0.0.1:{port}")
    print(f"Password   of user admin: in {_shown(PASSWORDS)}")
    if os.environ["AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE"] == "False":
        print("Schedules  are off: you trigger runs, or start a backfill. They are on with")
        print("           AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE=True make airflow", flush=True)


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


def _reap(services: set[int]) -> None:
    """Collect the exit codes of processes whose parent has died."""
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if process.pid not in services and process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0)


def _start(name: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a command in a separate session: the terminal's Ctrl-C reaches only this process."""
    with _log(name).open("w") as log:
        return subprocess.Popen(
            command, cwd=HOME, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait_for_end(migration: subprocess.Popen[bytes]) -> None:
    if migration.wait():
        raise AirflowError(f"`airflow db migrate` ended with exit code {migration.returncode}. {_last_lines('db')}")


def _port() -> int:
    """Return the port of the UI. Raises `AirflowError` if something listens there."""
    port = int(os.environ.get("AIRFLOW_PORT", "8080"))
    if _answers(port):
        raise AirflowError(f"Port {port} is in use. AIRFLOW_PORT=8081 make airflow takes another.")
    return port


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


def _is_healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=5) as answer:
            health = json.load(answer)
    except (URLError, TimeoutError, ConnectionError):
        return False
    return all(health[part]["status"] == "healthy" for part in ("scheduler", "dag_processor"))


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
