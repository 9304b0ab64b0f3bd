"""Settings of a branch: values that replace those of the job's file, by dotted key, written as YAML."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any, Final, Union, get_args, get_origin

import msgspec
import yaml

from headrace.config._document import read_value
from headrace.errors import ConfigError

_MAP: Final = "tag:yaml.org,2002:map"
_STR: Final = "tag:yaml.org,2002:str"
_SECTION: Final = "a branch is part of its job, which has them"
_FOLDER: Final = "a branch is a folder in that of its job"
_NOT_ON_BRANCHES: Final[Mapping[str, str]] = {
    "job": _SECTION,
    "description": _SECTION,
    "owner": _SECTION,
    "tags": _SECTION,
    "schedule": _SECTION,
    "airflow": _SECTION,
    "cluster": "give it to each run, as --cluster",
    "max_parallelism": "a branch has the key groups of the state that it begins with",
    "state.root": _FOLDER,
    "state.name": _FOLDER,
    "state.local": _FOLDER,
    "sinks": "sinks of a branch are tables in its folder, which build on those of the job",
}


def check_settable(settings: Iterable[str]) -> None:
    """Raise `ConfigError` for the first key that no branch can set."""
    for key in settings:
        for refused, reason in _NOT_ON_BRANCHES.items():
            if f"{key}.".startswith(f"{refused}.") or refused.startswith(f"{key}."):
                msg = f"{shown_setting(key)}: a branch cannot set {refused}: {reason}"
                raise ConfigError(msg)


def shown_setting(key: str) -> str:
    """Return how messages name the place of a setting."""
    return f"--set {key}"


def put_settings(root: yaml.MappingNode, kind: type[Any], settings: Mapping[str, str]) -> None:
    """Replace values in the tree of a file by settings. The keys are those of the struct `kind`; unknown ones are added.

    Raises `ConfigError` for a value that is no YAML.
    """
    for key, text in settings.items():
        _put(root, kind, key, read_value(shown_setting(key), text))


def _put(node: yaml.MappingNode, kind: Any, key: str, value: yaml.Node) -> None:
    name, rest = _first_name(kind, key)
    entries = {entry[0].value: position for position, entry in enumerate(node.value)}
    position = entries.get(name)
    if rest:
        below = None if position is None else node.value[position][1]
        if not isinstance(below, yaml.MappingNode):
            below = yaml.MappingNode(_MAP, [], value.start_mark, value.end_mark)
        _put(below, _kind_of(kind, name), rest, value)
        value = below
    entry = (yaml.ScalarNode(_STR, name, value.start_mark, value.end_mark), value)
    if position is None:
        node.value.append(entry)
    else:
        node.value[position] = (node.value[position][0], value)


def _first_name(kind: Any, key: str) -> tuple[str, str]:
    """Return the first name of a dotted key, and the rest: names of fields and of options have dots of their own."""
    if get_origin(kind) is dict and get_args(kind)[0] is str:
        return key, ""
    known = [name for name in _fields(kind) if f"{key}.".startswith(f"{name}.")]
    name = max(known, key=len, default=key.partition(".")[0])
    return name, key[len(name) + 1 :]


def _kind_of(kind: Any, name: str) -> Any:
    """Return the type of an entry; None where there is none."""
    entry = get_args(kind)[1] if get_origin(kind) is dict else _fields(kind).get(name)
    if get_origin(entry) not in {Union, types.UnionType}:
        return entry
    return next((kind for kind in get_args(entry) if _fields(kind)), get_args(entry)[0])


def _fields(kind: Any) -> dict[str, Any]:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
