"""Make Python import pyspark from the installed package, and not from the zip file inside of it, which Spark puts in front.

Python keeps no compiled modules of a zip file: each driver and each daemon of workers would compile pyspark anew, for 0.4 s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def prefer_installed_pyspark() -> None:
    """Take the zip files of pyspark and py4j from `sys.path` if the package that has them, and the same code, is on it."""
    sys.path[:] = without_zip_files(sys.path)


def without_zip_files(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths of modules, but not the zip files within the pyspark of a folder that is among them."""
    folders = [*paths]
    packages = [Path(folder) / "pyspark" for folder in folders if (Path(folder) / "pyspark" / "__init__.py").is_file()]
    has_py4j = any((Path(folder) / "py4j" / "__init__.py").is_file() for folder in folders)
    libraries = [package / "python" / "lib" for package in packages[:1]]  # only the first is imported
    for folder in folders:
        path = Path(folder)
        is_copy = path.parent in libraries and (
            path.name == "pyspark.zip" or (has_py4j and path.name.startswith("py4j-"))
        )
        if not is_copy:
            yield folder
