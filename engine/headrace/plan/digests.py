"""Digests of a pipeline's code: they tell whether two runs had the same code.

The code of a pipeline is the source of its module and of all modules of its project that it imports, also those imported within
functions. A module of the project lies in the home, in a `py_file`, in the package of the pipeline's module, or anywhere else
outside the installed packages. Of an installed package the version counts. Comments and layout do not count, nor does the place of
a file. Modules that are imported by a computed name, and files that are no modules, are not found.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pkgutil import get_importer
from typing import Any, Final

from headrace.config import PipelineCode

_NOT_THE_USERS: Final = frozenset({"headrace", "pyspark", "py4j"})
_INSTALLED: Final = ("site-packages", "dist-packages")
_NO_PLACE: Final = frozenset({None, "built-in", "frozen", "namespace"})

_PACKAGE: Final = "package "
"""Begin of the name of an installed package; all other names are files."""


def code_digests(code: PipelineCode) -> dict[str, str] | None:
    """Return the digest of each source file of a pipeline, as `pipelines/shop.py`, and the version of each package it imports.

    Reads the files as they are now. Returns None if the code cannot be read: the module is not in a file, or `py_files` are on
    another machine.
    """
    if any("://" in file for file in code.py_files):
        return None
    code.make_importable()
    importlib.invalidate_caches()
    main = code.reference.partition(":")[0]
    digests: dict[str, str] = {}
    packages: set[str] = set()
    seen: set[str] = set()
    waiting = [main]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in _NOT_THE_USERS:
            continue
        if top != main.partition(".")[0] and _is_installed(top):
            packages.add(top)
            continue
        waiting += _parents(name)
        spec = _spec(name)
        if spec is not None and spec.origin not in _NO_PLACE:
            file, content, imported = _read(spec)
            digests[file] = blake2b(content, digest_size=8).hexdigest()
            waiting += imported
    if not any(file in digests for file in (_file(main, is_package=False), _file(main, is_package=True))):
        return None
    return dict(sorted({**digests, **_versions(packages)}.items()))


@functools.cache
def loaded_code_digests(code: PipelineCode) -> dict[str, str] | None:
    """Return what `code_digests` did at the first call in this process: files may change later, and what is loaded does not."""
    return code_digests(code)


def described_difference(name: str, before: str | None, now: str | None) -> str:
    """Return a clause on a file or package whose digest or version differs: `pipelines/shop.py has changed`."""
    if name.startswith(_PACKAGE):
        return f"{name} is {now or 'gone'}, and was {before or 'not there'}"
    if before is None:
        return f"{name} is new"
    return f"{name} is gone" if now is None else f"{name} has changed"


def _spec(name: str) -> ModuleSpec | None:
    """Return the place of a module without running any code; None if there is no such module."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # ValueError: somebody made the module by hand
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _below(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def _below(name: str, places: Iterable[str]) -> ModuleSpec | None:
    """Return a module in the places of its package. Python itself finds those of a folder without `__init__.py` only in imports."""
    portions: list[str] = []
    for place in places:
        finder = get_importer(place)
        spec = None if finder is None else finder.find_spec(name, None)
        if spec is not None and spec.loader is not None:
            return spec
        portions += [] if spec is None else spec.submodule_search_locations or []
    folder = ModuleSpec(name, None)
    folder.submodule_search_locations = portions
    return folder if portions else None


def _is_installed(top: str) -> bool:
    """Return whether a package is an installed one, and not a part of the project."""
    spec = _spec(top)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin not in _NO_PLACE else [*(spec.submodule_search_locations or ())]
    return any(folder in str(place) for place in places for folder in _INSTALLED)


def _read(spec: ModuleSpec) -> tuple[str, bytes, list[str]]:
    """Return the file of a module, the content that counts, and the modules that it may import."""
    is_package = spec.submodule_search_locations is not None
    file = _file(spec.name, is_package=is_package)
    loader: Any = spec.loader
    source = loader.get_source(spec.name)
    if source is None:  # compiled
        return file, loader.get_data(spec.origin), []
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return file, source.encode(), []
    package = spec.name if is_package else spec.name.rpartition(".")[0]
    return file, ast.unparse(tree).encode(), [*_imported(tree, package)]


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names that a module imports, also those that turn out to be no modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                try:
                    module = resolve_name("." * node.level + module, package)
                except ImportError:  # beyond the top: it cannot be imported
                    continue
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _parents(name: str) -> Iterator[str]:
    """Yield the packages around a module, which an import runs first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _file(name: str, *, is_package: bool) -> str:
    return name.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def _versions(packages: set[str]) -> dict[str, str]:
    """Return the version of each installed package, by its name and that of its distribution."""
    # Takes long to load, and only runs of branches need it.
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    versions: dict[str, str] = {}
    for top in packages:
        try:
            versions[f"{_PACKAGE}{top}"] = version(top)
        except PackageNotFoundError:  # the distribution has another name
            for distribution in sorted({*packages_distributions().get(top, ())}):
                versions[f"{_PACKAGE}{distribution}"] = version(distribution)
    return versions
