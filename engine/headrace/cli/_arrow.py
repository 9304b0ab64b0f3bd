"""Keeping pandas out of commands that only read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse pandas; leave everything else to the next finder."""
        del path, target
        if fullname == "pandas":
            msg = "pandas is left out of commands that read state"
            raise ImportError(msg)
        return None


def without_pandas() -> None:
    """Make pyarrow do without pandas in this process.

    pyarrow looks for pandas when it first turns a value into a Python object, for the sake of
    types that no state table has. That import takes 0.7 s, more than all the rest of `headrace
    state get`. pyarrow asks once and remembers the answer, so the refusal lasts for that moment.
    Must not be called in a process that starts Spark, which does want pandas.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar([0])
    finally:
        sys.meta_path.remove(finder)
