"""YAML with line numbers: a file as a tree of nodes, and its problems."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import yaml

from headrace.errors import ConfigError

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml: the same tree, more slowly
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

_TAG = "tag:yaml.org,2002:"
_DEEPEST = 100
_KINDS = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
    "seq": "a list",
    "map": "a mapping",
    "merge": "a merge key",
}


class Problems:
    """Problems of one file. All are reported at once, so that one edit can fix them."""

    def __init__(self, file: Path) -> None:
        """Start without problems."""
        self._file = file
        self._found: list[str] = []

    def add(self, node: yaml.Node, key: str, text: str) -> None:
        """Add a problem at `node`; `key` is its dotted path in the file."""
        named = name_of(node)
        where = f"{self._file}:{line_number(node)}" if named is None else named
        self._found.append(f"{where}: {text}" if where.endswith(f" {key}") else f"{where}: {key}: {text}")

    def __len__(self) -> int:
        """Return the number of problems so far."""
        return len(self._found)

    def raise_any(self) -> None:
        """Raise a `ConfigError` that lists the problems; do nothing without problems."""
        raise_problems(self._file, self._found)


def raise_problems(file: Path, problems: Sequence[str]) -> None:
    """Raise a `ConfigError` that lists the problems of a file, if there are any; lines within one are indented further."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        lines = "\n".join("  " + problem.replace("\n", "\n    ") for problem in problems)
        msg = f"{file} has {len(problems)} problems:\n{lines}"
        raise ConfigError(msg)


def read_document(file: Path) -> yaml.MappingNode:
    """Return the mapping at the top of a YAML file.

    Raises `ConfigError` when the file cannot be read, is no YAML, or holds anything but a mapping.
    """
    text = _text_of(file)
    try:
        _check_depth(file, text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _broken(file, text, error) from error
    if not isinstance(root, yaml.MappingNode):
        msg = f"{file}:1: expected a mapping of keys to values, got {node_kind(root)}"
        raise ConfigError(msg)
    return root


class _Named(io.StringIO):
    """A text whose nodes know its name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def read_value(name: str, text: str) -> yaml.Node:
    """Return a value that is not in a file, as a node for which `name_of` returns `name`. No text is null.

    Raises `ConfigError` when it is no YAML.
    """
    try:
        _check_depth(name, text)
        node: yaml.Node | None = yaml.compose(_Named(name, text), Loader=_Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it has a character that is not allowed"
        msg = f"{name}: '{text}' is not valid YAML: {problem}"
        raise ConfigError(msg) from error
    return read_value(name, "null") if node is None else node


def name_of(node: yaml.Node) -> str | None:
    """Return the name of a value that was read by `read_value`; None of one that is in a file."""
    name: str = node.start_mark.name
    return None if name.startswith("<") else name


def _text_of(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        msg = f"{file}: cannot be read: {error}"
        raise ConfigError(msg) from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        msg = f"{file}:{line}: this is not UTF-8 (byte {content[error.start]:#04x}); save the file as UTF-8"
        raise ConfigError(msg) from error


def _check_depth(file: Path | str, text: str) -> None:
    """Refuse nesting so deep that building the tree would end the process: libyaml's C stack would overflow."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            mark = event.start_mark
            line = mark.line + 1 if mark else 1
            msg = f"{file}:{line}: lists and mappings are nested more than {_DEEPEST} deep; no key takes that"
            raise ConfigError(msg)


def _broken(file: Path, text: str, error: yaml.YAMLError) -> ConfigError:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return ConfigError(
            f"{file}:{line}: this is not valid YAML: the character {_named(error.character)} is not allowed"
        )
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"{file}:{mark.line + 1}" if mark else str(file)
    if mark and text[mark.index : mark.index + 1] == "\t":
        problem = "a tab begins here, and YAML is indented with spaces"
    return ConfigError(f"{where}: this is not valid YAML: {problem}")


def _named(character: int | str) -> str:
    return f"U+{ord(character) if isinstance(character, str) else character:04X}"


def line_number(node: yaml.Node) -> int:
    """Return the line on which a node starts, counted from 1."""
    line: int = node.start_mark.line
    return line + 1


def tag_of(node: yaml.Node) -> str:
    """Return the short name of a node's YAML type: str, int, bool, null, seq, map, ..."""
    return str(node.tag).removeprefix(_TAG)


def node_kind(node: yaml.Node | None) -> str:
    """Return a description of a node in words, with its text if it has one."""
    if node is None:
        return "an empty file"
    kind = _KINDS.get(tag_of(node), f"a value of type {node.tag}")
    if isinstance(node, yaml.ScalarNode) and tag_of(node) != "null":
        return f"{kind} ({node.value})"
    return kind
