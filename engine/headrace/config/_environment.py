"""`${NAME}` and `${NAME:-default}` in values of configuration files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_WHOLE_SECRET = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")


def substitute(text: str, environment: Mapping[str, str]) -> str:
    """Replace each reference in `text`. An empty variable counts as unset.

    Raises `ValueError` for a variable that is unset and has no default, and for a reference that
    is not of the two forms. References in the replacement are not replaced.
    """

    def replacement(match: re.Match[str]) -> str:
        name, default = _name_and_default(match)
        value = environment.get(name) or default
        if value is None:
            msg = f"environment variable {name} is not set; set it, or give a default: ${{{name}:-...}}"
            raise ValueError(msg)
        return value

    return _REFERENCE.sub(replacement, text)


def check_references(text: str) -> None:
    """Raise `ValueError` for a reference that is not of the two forms, without reading variables."""
    for match in _REFERENCE.finditer(text):
        _name_and_default(match)


def expand_settings(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Replace the references in settings that were loaded with `keep_references`.

    Raises `ConfigError` that names the setting whose variable is unset and has no default.
    """
    return {key: _expand_setting(key, text, environment) for key, text in settings.items()}


def _expand_setting(key: str, text: str, environment: Mapping[str, str]) -> str:
    try:
        return substitute(text, environment)
    except ValueError as error:
        raise ConfigError(f"setting {key}: {error}") from error


def _name_and_default(match: re.Match[str]) -> tuple[str, str | None]:
    inside = _INSIDE.fullmatch(match[1])
    if inside is None:
        msg = f"'{match[0]}' is not a reference: write ${{NAME}} or ${{NAME:-default}}"
        raise ValueError(msg)
    return inside[1], inside[2]


def is_only_a_reference(text: str) -> bool:
    """Return whether `text` is one reference without a default: the only way to name a secret."""
    return _WHOLE_SECRET.fullmatch(text.strip()) is not None
