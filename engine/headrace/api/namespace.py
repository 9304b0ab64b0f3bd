"""Namespaces of states and timers."""

from __future__ import annotations


def check_namespace(namespace: object) -> None:
    """Refuse a namespace that cannot be stored, with `ValueError`; what is no text, with `TypeError`.

    Any text will do that has no zero character, and that UTF-8 can hold. The empty one is no namespace.
    """
    if not isinstance(namespace, str):
        msg = f"a namespace is a text, not {namespace!r:.100}"
        raise TypeError(msg)
    if "\x00" in namespace or not namespace.isascii():
        _check_text(namespace)


def _check_text(namespace: str) -> None:
    try:
        namespace.encode()
    except UnicodeEncodeError as error:
        msg = f"a namespace must be text that UTF-8 can hold, not {namespace!r:.100}"
        raise ValueError(msg) from error
    if "\x00" in namespace:
        msg = f"a namespace must have no zero character, as {namespace!r:.100} has"
        raise ValueError(msg)
