"""Write docs/reference/configuration.md: all keys of a job's file and of a cluster profile, from the structs that read them."""

from __future__ import annotations

import enum
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import generated_page  # type: ignore[import-not-found]  # a script's neighbour
import msgspec
import yaml
from msgspec.structs import FieldInfo, fields

from headrace.config import ClusterFile, JobFile, format_duration
from headrace.config._scalars import unwrap
from headrace.config._schema import field_documentation
from headrace.config._types import FUNCTION, LOCATION, NAME, NONE_WORD, PIPELINE

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"

HEAD: Final = """# Keys of the configuration files

Made from docstrings by `make reference`; do not edit. [Configuration](../configuration.md) has the rules for all files, what may change between two
runs, and the environment variables.
"""
TITLES: Final[Mapping[type[msgspec.Struct], str]] = {
    JobFile: "A job: `conf/jobs/<job>.yaml`",
    ClusterFile: "A cluster profile: `conf/clusters/<name>.yaml`",
}
TEXTS: Final = field_documentation()

_FORMS: Final[Mapping[Any, str]] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    timedelta: "duration",
    datetime: "day or timestamp",
    type(None): "null",
    NAME: "name",
    LOCATION: "path or URI",
    PIPELINE: "package.module:variable",
    FUNCTION: "package.module:function",
    NONE_WORD: "duration, `none`",
}
_PLURALS: Final = {"text": "texts", "path or URI": "paths or URIs"}
_LINK: Final = re.compile(r"\]\((?=[\w-]+\.md)")
_DEFAULT: Final = re.compile(r" Default: (.+)\.$")

Paths = Mapping[type[msgspec.Struct], str]
"""The place of each struct in its file, as `sources.<name>.csv`."""


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, types.UnionType}


def _paths_in(kind: Any, path: str) -> Iterator[tuple[type[msgspec.Struct], str]]:
    """Yield the structs in a type, and those in their fields, with their places."""
    if _is_struct(kind):
        yield kind, path
        for field in fields(kind):
            yield from _paths_in(field.type, f"{path}.{field.encode_name}".removeprefix("."))
    elif get_origin(kind) is dict:
        yield from _paths_in(get_args(kind)[1], f"{path}.<name>")
    elif _is_union(kind):
        for part in get_args(kind):
            yield from _paths_in(part, path)


def _first_paths(file: type[msgspec.Struct]) -> Paths:
    """Return the first place of each struct of a file: others link to it."""
    paths: dict[type[msgspec.Struct], str] = {}
    for kind, path in _paths_in(file, ""):
        paths.setdefault(kind, path)
    return paths


def _forms(kind: Any, paths: Paths) -> Iterator[str]:
    """Yield the forms that a value may have."""
    base, role = unwrap(kind)
    if _is_union(kind):
        for part in get_args(kind):
            yield from _forms(part, paths)
    elif get_origin(base) is Literal:
        yield from (f"`{text}`" for text in get_args(base))
    elif isinstance(base, type) and issubclass(base, enum.Enum):
        yield from (f"`{member.value}`" for member in base)
    elif get_origin(base) is tuple:
        item = _alternatives(_forms(get_args(base)[0], paths))
        yield f"list of {_PLURALS.get(item, item)}"
    elif _is_struct(base) or get_origin(base) is dict:
        yield _mapping(base, paths)
    else:
        yield _FORMS.get(role, _FORMS[base]) + _bounds(kind)


def _mapping(kind: Any, paths: Paths) -> str:
    """Return a link to the keys of a mapping; `mapping` where any may be."""
    noun, struct = ("mapping", kind) if _is_struct(kind) else ("mapping of names", get_args(kind)[1])
    return f"[{noun}](#{_anchor(paths[struct])})" if _is_struct(struct) else "mapping"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading)


def _bounds(kind: Any) -> str:
    """Return the range of a number; an empty text for any other type."""
    meta = get_args(kind)[1] if get_origin(kind) is Annotated else msgspec.Meta()
    words = {"from": meta.ge, "to": meta.le, "above": meta.gt}
    return "".join(f" {word} {bound}" for word, bound in words.items() if bound is not None)


def _alternatives(forms: Iterator[str]) -> str:
    *others, last = forms
    comma = "," if last == "null" else ""
    return f"{', '.join(others)}{comma} or {last}" if others else last


def _default(field: FieldInfo) -> str:
    """Return the default of a key, as YAML has it."""
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if unwrap(field.type)[1] == LOCATION and not value:
        return "none"
    return f"`{yaml.safe_dump(_plain(value), default_flow_style=True).partition(chr(10))[0]}`"


def _plain(value: Any) -> Any:
    """Return a default in types of YAML. A mapping with keys of its own is empty then: they have their own defaults."""
    match value:
        case timedelta():
            return format_duration(value)
        case enum.Enum():
            return value.value
        case msgspec.Struct():
            return {}
        case tuple():
            return [*value]
    return value


def _row(struct: type[msgspec.Struct], field: FieldInfo, paths: Paths) -> str:
    key, default, forms = field.encode_name, _default(field), _forms(field.type, paths)
    text = " ".join(_text(struct, field).split())
    if explained := _DEFAULT.search(text):  # of null, which is no value of its own then
        text, default = text[: explained.start()], explained[1] if " " in explained[1] else f"`{explained[1]}`"
        forms = (form for form in forms if form != "null")
    cells = [f"`{key}`", _alternatives(forms), default, text]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _text(struct: type[msgspec.Struct], field: FieldInfo) -> str:
    """Return what a key means: its docstring, or the first paragraph of that of its struct.

    Raises:
        LookupError: it has neither.
    """
    if text := TEXTS.get((struct.__name__, field.encode_name)):
        return _linked(text)
    kind = get_args(field.type)[1] if get_origin(field.type) is dict else field.type
    if _is_struct(kind):
        return _docstring(kind).partition("\n\n")[0]
    raise LookupError(f"{struct.__name__}.{field.name} has no docstring")


def _docstring(struct: type[msgspec.Struct]) -> str:
    return _linked(inspect.cleandoc(struct.__doc__ or ""))


def _linked(text: str) -> str:
    """Return a docstring with links that start at the page."""
    return _LINK.sub("](../", text)


def _section(heading: str, struct: type[msgspec.Struct], paths: Paths) -> str:
    rows = "".join(_row(struct, field, paths) for field in fields(struct))
    return f"\n{heading}\n\n{_docstring(struct)}\n\n| key | value | default | meaning |\n|---|---|---|---|\n{rows}"


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for file, title in TITLES.items():
        paths = _first_paths(file)
        parts += [_section(f"### `{path}`" if path else f"## {title}", kind, paths) for kind, path in paths.items()]
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(generated_page.run(PAGE, page, __doc__ or ""))
