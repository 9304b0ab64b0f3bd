"""Patterns of paths in a source's folder, with wildcards.

    *       any text within one part of a path     orders-*.csv       orders-1.csv
    ?       one character of a part                orders-?.csv       orders-1.csv
    [...]   one of these characters; [!...] none   orders-[0-9].csv   orders-1.csv
    **/     any number of folders, also none       **/orders.csv      orders.csv, 2026/03/orders.csv

Letters match in any case, as endings of files do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_TOKEN: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?+[^/][^\]/]*\]|.", re.DOTALL)
_WILDCARDS: Final = {"**/": "(?:[^/]+/)*", "**": "(?s:.*)", "*": "[^/]*", "?": "[^/]"}
_RANGE: Final = re.compile("(.)-(.)|(.)", re.DOTALL)


def wildcards(text: str) -> str:
    """Return the regular expression of a text with wildcards, without groups that it could be asked for."""
    return "".join(map(_expression, _TOKEN.findall(text)))


@lru_cache(maxsize=256)
def file_pattern(text: str) -> re.Pattern[str]:
    """Return the expression of a pattern of paths. Raises `ValueError` that says why no file can have such a path."""
    for problem in _problems(text):
        raise ValueError(problem)
    try:
        return re.compile(wildcards(text), re.IGNORECASE)
    except re.error as error:
        msg = f"it cannot be read ({error}): write a range from the lower to the higher character, as in [0-9]"
        raise ValueError(msg) from error


def _expression(token: str) -> str:
    if token in _WILDCARDS:
        return _WILDCARDS[token]
    if len(token) == 1:
        return re.escape(token)
    body = _RANGE.sub(_characters, token[1:-1].removeprefix("!"))
    return f"(?!/)[{'^' if token[1] == '!' else ''}{body}]"


def _characters(match: re.Match[str]) -> str:
    first, last, single = match.groups()
    return re.escape(single) if first is None else f"{re.escape(first)}-{re.escape(last)}"


def _problems(text: str) -> Iterator[str]:
    parts = text.split("/")
    if not text or "" in parts or {".", ".."} & {*parts}:
        yield "it is no path from the source's folder: write names and wildcards with one / between them, such as 2026/*/orders-*.csv"
    if any("**" in part and part != "**" for part in parts):
        yield "** stands for folders, and only alone between two /: write * for a part of a name"
    if parts[-1] == "**":
        yield "it ends with folders: write **/* for all files in them"
    if any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts):
        yield "names that begin with . or _ are passed over"
