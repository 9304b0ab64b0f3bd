"""Make Python import pyspark from the installed package, and not from the zip file inside of it, which Spark puts in front.

Python keeps no compiled modules of a zip file: each driver and each daemon of workers would compile pyspark anew, for 0.4 s.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


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
