"""Names that are stored or shown: of jobs, operators, states, sinks, tables and savepoints."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

NAME_RULE = "lower-case letters, digits and underscores, starting with a letter, at most 63"


def is_name(text: str) -> bool:
    """Return whether `text` could be a folder, a table and a word of SQL."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, what: str = "name") -> str:
    """Return `text` if it is a name; `what` says what it should be, as in "job name".

    Raises `ValueError` otherwise.
    """
    if not is_name(text):
        msg = f"'{text}' is not a valid {what}: {NAME_RULE}"
        raise ValueError(msg)
    return text


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun, as `1 row` or `2,000 rows`. `several` is the plural, unless it is `one` with an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest of `known`, or an empty text."""
    import difflib  # 10 ms, for errors alone

    nearest = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""
