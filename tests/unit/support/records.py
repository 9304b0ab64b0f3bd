"""Records with the type that their test knows, and the engine does not."""

from __future__ import annotations

from typing import Any

from headrace.execution.element import Emitted


def record_of(emitted: Emitted) -> Any:
    """Return what was emitted: for the engine it is some struct, for the caller one of the test's own."""
    return emitted.record
