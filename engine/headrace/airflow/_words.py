"""Words of a `headrace` command, made from options that Airflow renders when the task runs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ConfigError

_NOTHING = {"", "None"}
_ON, _OFF = {"True", "true", "1", "yes", "on"}, {"False", "false", "0", "no", "off"}
SWITCHES = frozenset({"--finish", "--end-of-input", "--force-fail-over", "--no-follow", "--check", "--verify"})


def option(name: str, value: object) -> str:
    """Return `--name=value`. `value` may be a template; `plain_words` converts the rendered word."""
    return f"--{name}={'' if value is None else value}"


def plain_words(words: Sequence[str]) -> list[str]:
    """Return rendered `words` in the command's form: without options that have no value, and with plain switches.

    Raises `ConfigError` for a switch that is neither true nor false.
    """
    plain = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in SWITCHES:
            plain += [name] if _is_on(name, value) else []
        elif word and not (equals and name.startswith("--") and value in _NOTHING):
            plain.append(word)
    return plain


def value_of(name: str, words: Sequence[str]) -> str | None:
    """Return the value of option `--name` in `words`; None if it is missing."""
    beginning = f"--{name}="
    return next((word.removeprefix(beginning) for word in words if word.startswith(beginning)), None)


def with_interval(words: Sequence[str], interval: tuple[str, str]) -> list[str]:
    """Return `words` with another interval."""
    names = ("interval-start", "interval-end")
    beginnings = tuple(f"--{name}=" for name in names)
    others = [word for word in words if not word.startswith(beginnings)]
    return [*others, *(option(name, timestamp) for name, timestamp in zip(names, interval, strict=True))]


def _is_on(name: str, value: str) -> bool:
    if value in _ON:
        return True
    if value in _OFF | _NOTHING:
        return False
    raise ConfigError(f"{name}: '{value}' is neither true nor false")
