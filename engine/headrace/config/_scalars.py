"""Single values of a configuration file: references to the environment, schemes of places, types and ranges.

References are `${NAME}` and `${NAME:-default}`. Schemes of places say where sources, sinks and state may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from posixpath import normpath, realpath
from typing import Annotated, Any, Final, Literal, get_args, get_origin
from urllib.parse import unquote, urlsplit

import msgspec
import yaml

from headrace.config._document import node_kind, tag_of
from headrace.config._types import FUNCTION, LOCATION, NAME, PIPELINE, SCALAR, SECRET
from headrace.config._values import RULE, parse_duration
from headrace.errors import ConfigError
from headrace.names import NAME_RULE, counted, did_you_mean

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


OBJECT_STORES: Final = ("s3", "s3a")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_allowed: Final = {*OBJECT_STORES}


def allow_scheme(name: str) -> None:
    """Allow places `name://` in this process: `headrace.testing` has registered how to reach them."""
    _allowed.add(name)


def check_scheme(text: str) -> None:
    """Raise `ValueError` that names what is supported, unless a place is a path of this machine or has a known scheme.

    The message does not repeat the place, which may hold a password.
    """
    if _WINDOWS.match(text):
        msg = f"a path of Windows is not supported: {_SUPPORTED}"
        raise ValueError(msg)
    match = _SCHEME.match(text)
    if match is None and not text.startswith("://"):
        return
    scheme = "" if match is None else match[1].lower()
    if scheme in _allowed and text[len(scheme) :].startswith("://"):
        return
    what = f"the scheme '{scheme}' of this place is not supported" if scheme not in _allowed else f"write {scheme}://"
    msg = f"{what}: {_SUPPORTED}"
    raise ValueError(msg)


_SUPPORTED: Final = "expected a path of this machine, such as /data/lake or file:///data/lake, or s3://BUCKET/FOLDER"


_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_NUMBER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9]+)?")
_LONGEST_NUMBER = 40
_LARGEST_INTEGER = (1 << 63) - 1
_RULES = {
    NAME: f"is not a valid name: {NAME_RULE}",
    PIPELINE: "is not package.module:variable, as in pipelines.flights:pipeline",
    FUNCTION: "is not package.module:function, as in company.alerts:page",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Context of values: the home folder of relative paths, and the environment."""

    home: Path
    environment: Mapping[str, str]
    keep_references: bool = False
    """True: keep `${NAME}` in settings of Spark and of storage unchanged."""
    keep_secrets: bool = False
    """True: keep `${NAME}` in values that say whom to tell unchanged."""


def read_scalar(node: yaml.Node, kind: Any, place: Place) -> Any:
    """Return the value of a node as a `kind`.

    Raises `ValueError` that names the expected and the actual value.
    """
    base, role = unwrap(kind)
    if not isinstance(node, yaml.ScalarNode) or tag_of(node) == "null":
        msg = f"expected {_wanted(base)}, got {node_kind(node)}"
        raise ValueError(msg)
    text = _substituted(node.value, role, place)
    _check_characters(text)
    if allowed := _choices(base):
        return _choice(text, allowed)
    if base is str and tag_of(node) != "str" and role != SCALAR:
        msg = f'expected text, got {node_kind(node)}; write it in quotes: "{node.value}"'
        raise ValueError(msg)
    value = _parse(text, base, node, referenced=text != node.value)
    _check_range(value, kind, role)
    return located(text, place.home) if role == LOCATION else value


def _substituted(text: str, role: str | None, place: Place) -> str:
    if (role == SCALAR and place.keep_references) or (role == SECRET and place.keep_secrets):
        check_references(text)
        return text
    return substitute(text, place.environment)


def _check_characters(text: str) -> None:
    """Refuse characters that no path and no stored text can hold: U+0000, and bytes of the environment that are not UTF-8."""
    if "\0" in text:
        msg = "the character U+0000 is not allowed here; remove it"
        raise ValueError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = "the environment variable that it names is not UTF-8; set it to a text that is"
        raise ValueError(msg) from error


def unwrap(kind: Any) -> tuple[Any, str | None]:
    """Return a field's type without its annotation, and the role in the annotation."""
    if get_origin(kind) is not Annotated:
        return kind, None
    base, meta = get_args(kind)[:2]
    return base, (meta.extra or {}).get("role")


def _parse(text: str, base: Any, node: yaml.ScalarNode, *, referenced: bool) -> Any:
    parser = _PARSERS[base]
    quoted_number = base in {int, float} and tag_of(node) == "str" and not referenced
    if base in {int, float, timedelta} and len(text) > _LONGEST_NUMBER:
        msg = f"expected {_wanted(base)}, got a text of {counted(len(text), 'character')}"
        raise ValueError(msg)
    if quoted_number or (value := parser(text)) is None:
        shown = f"'{text}'" if referenced else node_kind(node)
        msg = f"expected {_wanted(base)}, got {shown}"
        raise ValueError(msg)
    return value


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _truth(text: str) -> bool | None:
    # Without YAML's yes/no/on/off: many people write them as plain words.
    return {"true": True, "false": False}.get(text)


def _timestamp(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: _integer,
    float: _number,
    bool: _truth,
    timedelta: parse_duration,
    datetime: _timestamp,
}
_WANTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    timedelta: RULE,
    datetime: "a day or a timestamp, such as 2026-01-31 or 2026-01-31T06:00:00+00:00",
}


def _wanted(base: Any) -> str:
    if allowed := _choices(base):
        return "one of " + ", ".join(allowed)
    return _WANTED[base]


def _choices(base: Any) -> dict[str, Any]:
    """Return the value of each text that a choice allows; an empty dictionary if the type is no choice."""
    if get_origin(base) is Literal:
        return {text: text for text in get_args(base)}
    return {member.value: member for member in base} if isinstance(base, type) and issubclass(base, Enum) else {}


def _choice(text: str, allowed: dict[str, Any]) -> Any:
    if text in allowed:
        return allowed[text]
    msg = f"'{text}' is not allowed{did_you_mean(text, allowed)} (allowed: {', '.join(allowed)})"
    raise ValueError(msg)


def _check_range(value: Any, kind: Any, role: str | None) -> None:
    if isinstance(value, timedelta | datetime):
        return
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        msg = f"'{value}' is out of range: whole numbers have 64 bits"
        raise ValueError(msg)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        rule = _RULES.get(role or "") or _bound(str(error))
        msg = f"'{value}' {rule}"
        raise ValueError(msg) from error


def _bound(message: str) -> str:
    """Rewrite msgspec's "Expected `int` >= 1" as "is out of range: it must be >= 1"."""
    bound = message.rpartition("`")[2].strip() or message
    return f"is out of range: it must be {bound}"


def located(text: str, home: Path) -> str:
    """Return a path as absolute from `home`; a URI with its scheme in lower case; a `file:` URI as its path. All without `..`.

    A disk resolves `x/..` only while there is a folder `x`, and object stores do not know it.

    Raises `ValueError` for a `file:` URI of another host, and for a scheme that is not supported.
    """
    if text.lower().startswith("file:/"):
        return _without_parents(_path_of(text), realpath)
    check_scheme(text)
    scheme, mark, rest = text.partition("://")
    if mark:
        return f"{scheme.lower()}{mark}{_without_parents(rest, normpath)}"
    return _without_parents(str(home / text), realpath)


def _without_parents(path: str, resolve: Callable[[str], str]) -> str:
    return resolve(path) if ".." in path.split("/") else path


def _path_of(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc.lower() not in {"", "localhost"}:
        msg = (
            f"'{uri}' names a folder of the host '{parts.netloc}': give a path of this machine, as in file:///data/lake"
        )
        raise ValueError(msg)
    return unquote(uri.partition(":")[2].removeprefix(f"//{parts.netloc}"))
