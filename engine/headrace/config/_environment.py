"""`${NAME}` and `${NAME:-default}` in values of configuration files."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_WHOLE_SECRET = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")


def substitute(text: str, environment: Mapping[str, str]) -> str:
    """Replace each reference in `text`. A variable that is empty counts as unset.

    Raises `ValueError` for a variable that is unset and has no default, and for a reference that
    is not of the two forms. The replacement itself is not looked at again.
    """

    def replacement(match: re.Match[str]) -> str:
        inside = _INSIDE.fullmatch(match[1])
        if inside is None:
            msg = f"'{match[0]}' is not a reference: write ${{NAME}} or ${{NAME:-default}}"
            raise ValueError(msg)
        name, default = inside.groups()
        value = environment.get(name) or default
        if value is None:
            msg = f"environment variable {name} is not set; set it, or give a default: ${{{name}:-...}}"
            raise ValueError(msg)
        return value

    return _REFERENCE.sub(replacement, text)


def is_only_a_reference(text: str) -> bool:
    """Whether `text` is one reference without a default: the only way to name a secret."""
    return _WHOLE_SECRET.fullmatch(text.strip()) is not None
