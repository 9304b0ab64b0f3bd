"""Identifiers, and the hint that a misspelt one gets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

NAME_RULE = "lower-case letters, digits and underscores, starting with a letter, at most 63"


def is_name(text: str) -> bool:
    """Whether `text` may name a job, an operator, a table, a cluster or a savepoint."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, what: str = "name") -> str:
    """Return `text` when it is an identifier.

    Raises `ConfigError` otherwise; `what` says what it should have been, as in "job name".
    """
    if not is_name(text):
        msg = f"'{text}' is not a valid {what}: {NAME_RULE}"
        raise ConfigError(msg)
    return text


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Answer "; did you mean 'x'?" for the nearest of `known`, or nothing."""
    import difflib

    nearest = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""
