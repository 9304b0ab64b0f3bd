"""Keep pandas out of a process until some code imports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def without_pandas() -> None:
    """Make pyarrow work without pandas until other code in this process imports it.

    pyarrow looks for pandas when it first turns a value into a Python object, for types that no state table has. That
    import takes as long as all the rest of `headrace state get`. pyarrow asks once and caches the answer. User code
    may need pandas, and so does pyspark: when they import it, pyarrow looks again.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _LatePandas()
    sys.meta_path.insert(0, finder)
    pa.scalar([0])
    finder.refuses = False


class _LatePandas(MetaPathFinder):
    """Hides pandas from pyarrow; later allows its first import, and makes pyarrow look again."""

    def __init__(self) -> None:
        self.refuses = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for pandas; leave every other module to the next finder."""
        del path, target
        if fullname != "pandas":
            return None
        if self.refuses:
            msg = "pandas is left out until something else imports it"
            raise ImportError(msg)
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _tell_pyarrow_behind(spec.loader)
        return spec


def _tell_pyarrow_behind(loader: Any) -> None:
    """Make pyarrow look for pandas again as soon as `loader` has executed its module."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        import pyarrow as pa

        execute(module)
        pa.table({}).to_pandas()  # pyarrow looks for pandas again here; pa.array() of a Series does not

    loader.exec_module = exec_module
