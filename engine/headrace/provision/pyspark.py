"""The installed pyspark: its version, and how drivers and workers come to use it.

Python keeps no compiled modules of a zip file: each driver and each daemon of workers would compile pyspark anew, for 0.4 s.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import cast
from zipimport import zipimporter

from headrace.errors import ConfigError

FITTING_SPARK = ("4.0", "4.1", "4.2")
"""Minor versions of Spark that delta-spark has jars for: `delta-spark_4.0_2.13` and so on. The last is the default."""

TESTED_PYSPARK = "4.2.0"

SUBMIT_OPTIONS = "HEADRACE_SUBMIT_OPTIONS"
"""Variable of a driver that starts Spark itself: the options of spark-submit, with the quotes of a shell, and `pyspark-shell` behind them."""


@cache
def submit_options() -> str | None:
    """Return the options in `SUBMIT_OPTIONS`, and take them out of the environment: they may hold secrets, and child processes inherit it."""
    return os.environ.pop(SUBMIT_OPTIONS, None)


_SPARKS = f"{', '.join(FITTING_SPARK[:-1])} and {FITTING_SPARK[-1]}"
_REFUSAL = f"and Delta's jars are made for Spark {_SPARKS}. Spark was not started."
_INSTALL = "Run: pip install 'headrace[spark]'"


def check_pyspark() -> str:
    """Return the version of pyspark. Spark is not imported.

    Raises `ConfigError` when pyspark is missing, or when its Python code or its jars do not fit Delta's jars. The two
    can differ: the package pyspark-client, a dependency of Airflow's Spark provider, overwrites pyspark's Python
    code. A driver in a container of YARN has no folder of Spark: the JVM that started it brought pyspark along as a zip file.
    """
    version = _python_version()
    home = None if _is_in_container() else spark_home()
    spark = (home and _jars_version(home)) or version
    if _minor(version) not in FITTING_SPARK:
        raise ConfigError(f"pyspark {version} is installed, {_REFUSAL} Run: pip install pyspark=={TESTED_PYSPARK}")
    if _minor(spark) != _minor(version):
        reinstall = f"Run: pip install --force-reinstall --no-deps pyspark=={version}"
        advice = (
            f"Unset SPARK_HOME, or let it name a Spark {_minor(version)}." if str(home) == _named_home() else reinstall
        )
        raise ConfigError(
            f"pyspark {version} finds the jars of Spark {spark} in {home}, and they do not fit each other. "
            f"Spark was not started. {advice}"
        )
    return version


_CONNECT_MODULES = ("pandas", "grpc", "grpc_status", "google.rpc")


def check_connect() -> str:
    """Return the version of the pyspark, or pyspark-client, that reaches a server of Spark Connect. Nothing of it is imported.

    Raises `ConfigError` when it, or a package that it needs for this, is missing, or its version does not fit.
    """
    version = _python_version()
    if _minor(version) not in FITTING_SPARK:
        raise ConfigError(
            f"pyspark {version} is installed, and Headrace runs on Spark {_SPARKS}. Run: pip install pyspark-client=={TESTED_PYSPARK}"
        )
    if missing := [name for name in _CONNECT_MODULES if not _is_there(name)]:
        raise ConfigError(
            f"pyspark {version} reaches a server of Spark Connect with modules that are not installed: {', '.join(missing)}. Run: pip install "
            "'headrace[connect]'"
        )
    return version


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def spark_minor() -> str:
    """Return the minor version of the installed pyspark, such as 4.2; the newest that fits if there is none, or one that does not fit."""
    try:
        minor = _minor(_python_version())
    except (ConfigError, OSError):
        minor = ""
    return minor if minor in FITTING_SPARK else FITTING_SPARK[-1]


def spark_home() -> Path:
    """Return the folder of the Spark that sessions start: $SPARK_HOME, else the one inside of pyspark.

    Raises `ConfigError` when there is none: pyspark-client has only the Python code.
    """
    folder = _folder(_pyspark())
    named = _named_home()
    for home in (Path(named), folder) if named else (folder,):
        if (home / "bin" / "spark-submit").is_file():
            return home
    raise ConfigError(f"{folder} has no Spark in it: it comes from pyspark-client, not from pyspark. {_INSTALL}")


def _is_in_container() -> bool:
    """Return whether the JVM of a driver in cluster mode has started this process, without a folder of Spark."""
    return "PYSPARK_GATEWAY_PORT" in os.environ and _named_home() is None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _named_home() -> str | None:
    return os.environ.get("SPARK_HOME")


def _pyspark() -> ModuleSpec:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(f"pyspark is not installed. {_INSTALL}")
    return spec


def _folder(spec: ModuleSpec) -> Path:
    return Path(str(spec.origin)).parent


def _python_version() -> str:
    """Read it from the code: the Spark of spark-submit has no metadata, and may be a zip file."""
    spec = _pyspark()
    file = _folder(spec) / "version.py"
    text = cast("SourceFileLoader | zipimporter", spec.loader).get_data(str(file)).decode()
    version = re.search(r"""^__version__.*["'](.+)["']""", text, re.MULTILINE)
    if version is None:
        raise ConfigError(f"{file} names no version of pyspark. {_INSTALL}")
    return version[1]


def _jars_version(home: Path) -> str | None:
    jar = next((home / "jars").glob("spark-core_*.jar"), None)
    return jar.stem.rpartition("-")[2] if jar else None


def daemon_settings(master: str, py_files: Sequence[str]) -> dict[str, str]:
    """Return Spark's settings for a daemon of workers that prefers the installed pyspark, unless it may run where Headrace is not installed.

    With a local master it runs in the driver's Python. `py_files` are shipped behind its start.
    """
    is_installed = master.startswith("local") and not master.startswith("local-cluster") and not py_files
    return {"spark.python.daemon.module": "headrace.spark.worker_daemon"} if is_installed else {}


def prefer_installed_pyspark() -> None:
    """Take the zip files of pyspark and py4j from `sys.path` if the installed packages have the same versions."""
    sys.path[:] = without_zip_files(sys.path)


def without_zip_files(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths of modules, but not the zip files within the first pyspark of them that have the code of installed packages.

    pyspark-client, a dependency of Airflow's Spark provider, may have written another version over the package: the zip file stays then.
    """
    folders = [*paths]
    pyspark, py4j = _first("pyspark", folders), _first("py4j", folders)
    for folder in folders:
        path = Path(folder)
        is_spark = pyspark is not None and path.parent == pyspark / "python" / "lib" and path.suffix == ".zip"
        if not (is_spark and any(_has_code_of(path, package) for package in (pyspark, py4j))):
            yield folder


def _first(package: str, folders: Iterable[str]) -> Path | None:
    packages = (Path(folder) / package for folder in folders)
    return next((path for path in packages if (path / "__init__.py").is_file()), None)


def _has_code_of(archive: Path, package: Path | None) -> bool:
    """Return whether a zip file has the same version of a package."""
    if package is None:
        return False
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(f"{package.name}/version.py") == (package / "version.py").read_bytes()
    except (OSError, KeyError, zipfile.BadZipFile):
        return False
