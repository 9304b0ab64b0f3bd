"""Python blocks of all pages: each parses, its imports exist, and its calls of the public API bind to their signatures."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap

import pytest

import headrace
import headrace.operators
import headrace.testing
from headrace.stream.stream import ConnectedStreams, Pipeline, Stream, WindowedStream
from tests.jobs.home import PROJECT

PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")])
DOORS = (headrace, headrace.operators, headrace.testing)
STREAMS = (Pipeline, Stream, ConnectedStreams, WindowedStream)

# Names of contexts, harnesses and DataFrames on the pages: their methods share names with those of streams.
OTHERS = {"ctx", "df", "h", "rows"}

# Records that a page uses without showing their classes. Their names are also names of aggregates.
RECORDS = {"Count"}


def blocks(page):
    """Yield the line and the syntax tree of each Python block of a page."""
    text = page.read_text()
    for block in re.finditer(r"^ *```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, block.start()) + 1, ast.parse(complete(textwrap.dedent(block[1])))


def complete(code):
    """Return a fragment as code that parses: methods get a stream, an `await` a function around it."""
    if code.startswith("."):
        code = f"(stream\n{code})"
    code = re.sub(r"^(\.lag\()", r"stream\1", code, flags=re.MULTILINE)
    return "async def block():\n" + textwrap.indent(code, "    ")


def public_calls(tree, own_names):
    """Yield each call of a public class, or of a method of streams, and the signatures that it may fit."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in own_names:
                items = [getattr(door, name) for door in DOORS if name in door.__all__]
                yield from ((node, [inspect.signature(item)]) for item in items[:1])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner))) if owner in OTHERS:
                continue
            case ast.Call(func=ast.Attribute(attr=name)):
                methods = [vars(base)[name] for kind in STREAMS for base in kind.__mro__ if name in vars(base)]
                signatures = [inspect.signature(method) for method in methods if inspect.isfunction(method)]
                if signatures:
                    yield node, signatures


def binds(call, signature):
    """Return whether the arguments of a call fit a signature, leaving out those that a fragment omits."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    is_method = next(iter(signature.parameters), None) == "self"
    try:
        signature.bind_partial(*[None] * (len(call.args) + is_method), **named)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_fit_the_public_api(page):
    trees = list(blocks(page))
    classes = {node.name for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for line, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
                module = importlib.import_module(node.module)
                missing = {name.name for name in node.names} - {*module.__all__}  # reading a name would import Airflow
                assert missing == set(), f"{page.name}:{line}"
        for call, signatures in public_calls(tree, classes | RECORDS):
            fits = any(binds(call, signature) for signature in signatures)
            assert fits, f"{page.name}:{line + call.lineno - 1}: {ast.unparse(call)[:100]}"


def test_pages_have_python_blocks():
    assert sum(1 for page in PAGES for _ in blocks(page)) > 60
