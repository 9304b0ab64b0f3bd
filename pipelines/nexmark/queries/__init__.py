"""One module for each query: its `pipeline` writes to the sink `result`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from headrace import Pipeline

NAMES: Final = tuple(sorted((module.name for module in iter_modules(__path__)), key=lambda name: int(name[1:])))
"""The queries, as in q0, q1, ..., in the order of their numbers."""


def load(name: str) -> Pipeline:
    """Return the pipeline of a query, such as "q5"; `ModuleNotFoundError` for another name."""
    pipeline: Pipeline = import_module(f"{__name__}.{name}").pipeline
    return pipeline
