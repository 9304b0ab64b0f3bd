"""Names that are stored: of pipelines, operators, side outputs, sinks and states; namespaces."""

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
