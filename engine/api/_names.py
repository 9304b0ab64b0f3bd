"""Names that are stored: of pipelines, operators, side outputs, sinks and states."""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def check_name(name: str) -> None:
    """Refuse a name that could not be a folder, a table or a word of SQL, with `ValueError`."""
    if not _NAME.fullmatch(name):
        msg = (
            f"'{name}' is not a valid name: lower-case letters, digits and underscores, starting with a "
            "letter, at most 63"
        )
        raise ValueError(msg)
