"""Write the reference of the public doors, `docs/reference/*.md`, from their docstrings; with --check, only compare.

python setup/reference.py            write the pages
python setup/reference.py --check    exit with 1, and name the pages, if the docstrings have changed since
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parent.parent
FOLDER = PROJECT / "docs" / "reference"
PAGES = {
    "headrace": "headrace",
    "headrace.operators": "operators",
    "headrace.testing": "testing",
    "headrace.airflow": "airflow",
    "headrace.errors": "errors",
}
_ONE_LINE = 110


class _Text:
    """Annotation or default that a signature prints as this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _own(member: object) -> bool:
    return getattr(inspect.unwrap(member), "__module__", "").startswith("headrace")  # type: ignore[arg-type]


def _signature(name: str, function: Callable[..., object], *, is_method: bool) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=_annotation(parameter.annotation), default=_default(parameter.default))
        for parameter in signature.parameters.values()
    ][1 if is_method else 0 :]
    text = str(signature.replace(parameters=parameters, return_annotation=_annotation(signature.return_annotation)))
    if len(name + text) <= _ONE_LINE or not parameters:
        return f"{name}{text}"
    # Positional and keyword-only markers are separate lines, as a formatter writes them.
    inner, _, result = text[1:].rpartition(") -> ") if ") -> " in text else (text[1:-1], "", "")
    lines = textwrap.indent(",\n".join(_split(inner)), "    ")
    return f"{name}(\n{lines},\n)" + (f" -> {result}" if result else "")


def _split(parameters: str) -> list[str]:
    """Split a list of parameters at its outer commas."""
    parts, depth, quote = [""], 0, ""
    for character in parameters:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _annotation(value: object) -> object:
    return _Text(value) if isinstance(value, str) else value


def _default(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_default, value))
    if isinstance(value, type) and value is not inspect.Parameter.empty:
        return _Text(value.__name__)
    return _Text(f"{type(value).__name__}.{value.name}") if isinstance(value, Enum) else value


def _docstring(thing: object) -> str:
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")


def _fields(cls: type) -> Iterator[str]:
    """Yield a line for each public attribute that a class declares with a docstring, or without one as a plain field."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):
        return
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - the source of a class
    for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, declared = node.target.id, f"{node.target.id}: {ast.unparse(node.annotation)}"
            declared += f" = {ast.unparse(node.value)}" if node.value is not None else ""
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and issubclass(cls, Enum):
            name = node.targets[0].id
            declared = f"{name} = {ast.unparse(node.value)}"
        else:
            continue
        if not name.startswith("_"):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            text = inspect.cleandoc(str(following.value.value)) if is_text else ""  # type: ignore[union-attr]
            yield f"- `{declared}`" + (": " + " ".join(text.split()) if text else "")


def _methods(cls: type, public: Collection[str]) -> Iterator[str]:
    """Yield an entry for each public method; methods of another public class are only named."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        own = [(name, member) for name, member in _functions(owner) if name not in seen]
        seen |= {name for name, _ in own}
        if own and owner is not cls and owner.__name__ in public:
            names = ", ".join(f"`{name}`" for name, _ in own)
            yield f"From [`{owner.__name__}`](#{owner.__name__.lower()}): {names}.\n"
            continue
        for name, member in own:
            function = _function(member)
            heading = name if isinstance(member, property) else _signature(name, function, is_method=_binds(member))
            yield f"```\n{heading}\n```\n\n{_docstring(function)}\n"


def _functions(cls: type) -> Iterator[tuple[str, object]]:
    """Yield name and member of each public method and property that a class defines itself."""
    for name, member in vars(cls).items():
        if not name.startswith("_") and inspect.isfunction(_function(member)) and _own(_function(member)):
            yield name, member


def _function(member: object) -> Callable[..., object]:
    return getattr(member, "fget", None) or getattr(member, "__func__", member)  # type: ignore[return-value]


def _binds(member: object) -> bool:
    return not isinstance(member, staticmethod)


def _has_constructor(cls: type) -> bool:
    """Return whether users construct a class: no enum, no error, no stream, which methods of a pipeline return."""
    if issubclass(cls, Enum | Exception) or not _defined(cls) & {"__init__"}:
        return False
    return "pipeline" not in inspect.signature(cls.__init__).parameters


def _entry(name: str, value: object, public: Collection[str]) -> str:
    parts = [f"## `{name}`\n"]
    if inspect.isclass(value):
        if _has_constructor(value):
            parts.append(f"```\n{_signature(name, value.__init__, is_method=True).removesuffix(' -> None')}\n```\n")
        parts.append(_docstring(value) + "\n")
        if fields := "\n".join(_fields(value)):
            parts.append(fields + "\n")
        parts += list(_methods(value, public))
    elif callable(value) and _own(value):
        parts.append(f"```\n{_signature(name, value, is_method=False)}\n```\n")
        parts.append(_docstring(value) + "\n")
    elif inspect.isfunction(value):
        parts.append(f"A name for `{value.__module__}.{value.__qualname__}`.\n")
    else:
        parts.append(f"A name for `{value!r}`.\n")
    return "\n".join(parts)


def _defined(cls: type) -> set[str]:
    return {name for owner in cls.__mro__ if owner.__module__.startswith("headrace") for name in vars(owner)}


def page_of(module: ModuleType) -> str:
    """Return the page of a door: its docstring, and each name of its `__all__`."""
    names = [name for name in module.__all__ if not name.startswith("__")]
    links = " · ".join(f"[{name}](#{name.lower()})" for name in names)
    entries = "\n".join(_entry(name, getattr(module, name), names) for name in names)
    head = f"# `{module.__name__}`\n\nMade from docstrings by `make reference`; do not edit.\n\n{_docstring(module)}\n"
    return f"{head}\n{links}\n\n{entries.rstrip()}\n"


def main() -> int:
    """Write the pages, or compare them with the docstrings; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"default: {', '.join(PAGES)}")
    options = parser.parse_args()
    is_check = options.check
    # This folder has an airflow.py, too.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    stale = []
    for door in options.doors or PAGES:
        name = PAGES[door]
        file, text = FOLDER / f"{name}.md", page_of(importlib.import_module(door))
        if not file.is_file() or file.read_text() != text:
            stale.append(file.relative_to(PROJECT))
            if not is_check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
    for file in stale:
        print(f"{file}: {'is not what the docstrings say; run make reference' if is_check else 'written'}")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
