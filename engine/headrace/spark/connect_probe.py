"""Probe of the Python workers of a Connect server: do they have what tasks need?

Spark gets the functions of this module by value, so that they run where Headrace is not installed: they import it last.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

Facts = dict[str, Any]


def facts_of(uri: str, options: dict[str, str] | None, file: str) -> Facts:
    """Return what this process has; `problem` says why no task can run here. Reads `file` of a folder as a task would."""
    facts: Facts = {"python": sys.executable, "hash_seed": os.environ.get("PYTHONHASHSEED", "random")}
    try:
        import headrace.run.keyed_stage
        import headrace.run.source_stage  # noqa: F401  tasks need both
        import headrace.spark.tasks  # noqa: F401
        from headrace.tables.folder import JobFolder
    except ImportError as error:
        return {**facts, "absent": str(error)}
    facts["headrace"] = headrace.__version__
    try:
        facts["sees_folder"] = JobFolder(uri, options).find(file) is not None
    except Exception as error:  # noqa: BLE001  of the storage, of its client: the driver tells it
        facts["sees_folder"] = f"{type(error).__name__}: {error}"
    return facts


def probing(uri: str, options: dict[str, str] | None, file: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function over batches of Arrow that yields the facts of its process, as JSON."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([json.dumps(facts_of(uri, options, file))])], names=["facts"])

    return run
