"""Whether the pyspark that is installed fits Delta's jars."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from headrace.errors import ConfigError

FITTING_SPARK = "4.2"
"""Delta's jars are made for one minor version of Spark: `delta-spark_4.2_2.13`."""

_INSTALL = "pip install 'headrace[spark]'"


def check_pyspark() -> str:
    """Return the version of the installed pyspark. Spark is not imported.

    Raises `ConfigError` when there is none, or none that fits Delta's jars.
    """
    version = _version(pyspark_folder())
    if not f"{version}.".startswith(f"{FITTING_SPARK}."):
        raise ConfigError(
            f"pyspark {version} is installed, and Delta's jars are made for Spark {FITTING_SPARK}. Spark was not "
            f"started. Run: pip install 'pyspark=={FITTING_SPARK}.*'"
        )
    return version


def pyspark_folder() -> Path:
    """Return the folder of the installed pyspark, which is a whole Spark; raise `ConfigError` when there is none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(f"pyspark is not installed. Run: {_INSTALL}")
    return Path(spec.origin).parent


def _version(folder: Path) -> str:
    """Read it from the package: a Spark that spark-submit brings along has no metadata of pip's."""
    version = re.search(r"""^__version__.*["'](.+)["']""", (folder / "version.py").read_text(), re.MULTILINE)
    if version is None:
        raise ConfigError(f"{folder} is no pyspark: its version.py names no version. Run: {_INSTALL}")
    return version[1]
