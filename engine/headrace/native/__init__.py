"""The engine's hottest code in C (`_engine.c`), where it has been compiled.

Everything is written in Python. The module in C replaces some methods by ones that do the same sooner, in the common case. It
is not used where it is missing, where it was made of another version's source, and where HEADRACE_PURE_PYTHON is 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

C = TypeVar("C", bound=type)

PURE_PYTHON = "HEADRACE_PURE_PYTHON"
"""Environment variable: 1 leaves the compiled module out."""

_INTERFACE = 1
"""The same number is in `_engine.c`."""


def _loaded() -> tuple[ModuleType | None, str]:
    """Return the module in C, and what the engine runs in; None with the reason."""
    if os.environ.get(PURE_PYTHON) == "1":
        return None, f"Python ({PURE_PYTHON} is 1)"
    try:
        from headrace.native import _engine
    except ImportError:
        return None, "Python (the module in C is not compiled)"
    if _engine.INTERFACE != _INTERFACE:
        return None, "Python (the module in C is of another version)"
    return _engine, "C"


_module, runs_in = _loaded()


def accelerated(cls: C) -> C:
    """Class decorator: replace the methods that the module in C has, too. Without it, the class stays as it is."""
    if _module is not None:
        _module.attach(cls)
    return cls


def is_on() -> bool:
    """Return whether the module in C is used."""
    return _module is not None and bool(_module.is_on())


@contextmanager
def in_python() -> Iterator[None]:
    """Leave everything to Python. For tests."""
    if _module is None:
        yield
        return
    before = _module.switch(False)
    try:
        yield
    finally:
        _module.switch(before)


if _module is not None:
    run_at_once = _module.run_at_once
