"""Namespaces of states and timers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def check_namespace(namespace: object) -> None:
    """Check a namespace: any text without a zero character that UTF-8 can encode. The empty text means no namespace.

    Raises `TypeError` unless it is text, and `ValueError` for text that cannot be stored.
    """
    if not isinstance(namespace, str):
        msg = f"a namespace is a text, not {namespace!r:.100}"
        raise TypeError(msg)
    if not namespace.isascii() or "\x00" in namespace:
        _check_text(namespace)


def checked_namespaces(namespaces: Iterable[str]) -> dict[str, None]:
    """Return namespaces without repetitions, in order. Raises the errors of `check_namespace`.

    Those of a tuple are remembered: operators read the same ones for many records. Do not change the returned ones.
    """
    return _checked_again(namespaces) if type(namespaces) is tuple else _checked(namespaces)


def _checked(namespaces: Iterable[str]) -> dict[str, None]:
    checked = dict.fromkeys(namespaces)
    if not all(type(namespace) is str for namespace in checked) or not _is_plain("".join(checked)):
        for namespace in checked:
            check_namespace(namespace)
    return checked


_checked_again = lru_cache(maxsize=1000)(_checked)


def _is_plain(text: str) -> bool:
    return text.isascii() and "\x00" not in text


def _check_text(namespace: str) -> None:
    try:
        namespace.encode()
    except UnicodeEncodeError as error:
        msg = f"a namespace must be text that UTF-8 can hold, not {namespace!r:.100}"
        raise ValueError(msg) from error
    if "\x00" in namespace:
        msg = f"a namespace must have no zero character, as {namespace!r:.100} has"
        raise ValueError(msg)
