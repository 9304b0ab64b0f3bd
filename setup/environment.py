"""The environment that every command of the project runs in.

    .venv/bin/python setup/environment.py            print it as shell `export` lines
    .venv/bin/python setup/environment.py COMMAND…   run COMMAND in it

`make` uses the second form; `eval "$(.venv/bin/python setup/environment.py)"` sets up a shell. A variable that is
already set wins, except variables that must match this checkout. Uses only the standard library and
headrace.provision, because `make setup` imports it before anything is installed.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
VENV = HOME / ".venv"
VAR = HOME / "var"
sys.path.insert(0, str(HOME / "engine"))


def environment(*, home: Path = HOME) -> dict[str, str]:
    """Return the environment variables for project folder `home`."""
    python = str(VENV / "bin" / "python")
    airflow_home = home / "var" / "airflow"
    always = {
        "HEADRACE_HOME": str(home),
        "VIRTUAL_ENV": str(VENV),
        "PATH": _path_with(VENV / "bin"),
        # Without these variables Spark takes `python3` from PATH, even in local mode.
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
    database = airflow_home / "database.url"
    if database.exists():  # `AIRFLOW_DB=postgresql make airflow` runs
        unless_set["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database.read_text()
    java = java_home()
    if java is not None:
        always["JAVA_HOME"] = str(java)
        if options := _submit_options(java):
            always["SPARK_SUBMIT_OPTS"] = options
    return {**{k: v for k, v in unless_set.items() if k not in os.environ}, **always}


def java_home() -> Path | None:
    """Return the Java for Spark; None if there is none yet: `headrace setup` then makes var/jdk."""
    from headrace.provision.java import find_java

    return find_java(HOME)


def _submit_options(java: Path) -> str:
    from headrace.provision.class_archive import ClassArchive

    return ClassArchive(HOME, java, _spark_home()).submit_options(os.environ.get("SPARK_SUBMIT_OPTS", ""))


def _path_with(folder: Path) -> str:
    others = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part != str(folder)]
    return os.pathsep.join([str(folder), *others])


def _spark_home() -> Path:
    result = sorted(VENV.glob("lib/python3.*/site-packages/pyspark"))
    return result[0] if result else VENV / "lib" / "pyspark"


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
