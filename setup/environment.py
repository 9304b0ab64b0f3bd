"""The environment that every command of the project runs in.

    .venv/bin/python setup/environment.py            print it as shell `export` lines
    .venv/bin/python setup/environment.py COMMAND…   run COMMAND in it

`make` goes through the second form; `eval "$(.venv/bin/python setup/environment.py)"` puts a shell into
it. A variable that is already set wins, apart from the ones that must match this checkout. Uses the
standard library alone, because `make setup` imports it before anything is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
VENV = HOME / ".venv"
VAR = HOME / "var"
OLDEST_JAVA = 17
"""Spark 4 doesn't start on an older one."""


def environment(*, home: Path = HOME) -> dict[str, str]:
    """Return what the process environment has to say for project folder `home`."""
    python = str(VENV / "bin" / "python")
    airflow_home = home / "var" / "airflow"
    always = {
        "HEADRACE_HOME": str(home),
        "VIRTUAL_ENV": str(VENV),
        "PATH": _path_with(VENV / "bin"),
        # Spark takes `python3` from PATH, even in local mode, unless told.
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_HOME": str(_spark_home()),
        "AIRFLOW_HOME": str(airflow_home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    unless_set = {
        # Spares Spark a slow look-up of this machine's name, and a warning.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW__CORE__EXECUTION_TIMEZONE": "UTC",
        # Two copies of a Spark session are two too many for a small machine.
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    java = java_home()
    if java is not None:
        always["JAVA_HOME"] = str(java)
    return {**{k: v for k, v in unless_set.items() if k not in os.environ}, **always}


def java_home() -> Path | None:
    """Return the Java that Spark is to use: JAVA_HOME's, else PATH's, else the one set up in var/jdk.

    None when there is none yet; `make setup` then makes var/jdk.
    """
    named = os.environ.get("JAVA_HOME")
    candidates = [Path(named) / "bin" / "java"] if named else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path))
    for java in candidates:
        if java_version(java) >= OLDEST_JAVA:
            return java.resolve().parent.parent
    ours = VAR / "jdk"
    return ours if (ours / "bin" / "java").exists() else None


def java_version(java: Path) -> int:
    """Return the major version of the executable `java`; 0 when it doesn't run.

    The file `release` beside it says so without the cost of starting a JVM.
    """
    release = java.resolve().parent.parent / "release"
    said = release.read_text() if release.exists() else _output(java, "-version")
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


def _output(*command: str | Path) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout + done.stderr


def _path_with(folder: Path) -> str:
    others = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part != str(folder)]
    return os.pathsep.join([str(folder), *others])


def _spark_home() -> Path:
    found = sorted(VENV.glob("lib/python3.*/site-packages/pyspark"))
    return found[0] if found else VENV / "lib" / "pyspark"


def main() -> None:
    """Print the environment, or run the command given in it."""
    if len(sys.argv) == 1:
        for name, value in environment().items():
            print(f"export {name}={shlex.quote(value)}")
        return
    os.environ.update(environment())
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  the command is the user's own


if __name__ == "__main__":
    main()
