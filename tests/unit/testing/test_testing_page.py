"""The example of docs/testing.md is a pipeline, and its tests pass."""

from __future__ import annotations

import re
import sys
from inspect import signature
from itertools import product
from types import ModuleType

import pytest

from headrace import crash_points
from headrace.testing import PipelineHarness
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "testing.md").read_text()


@pytest.fixture
def page(monkeypatch):
    """The module that the page's code makes."""
    module = ModuleType("testing_page")
    monkeypatch.setitem(sys.modules, "testing_page", module)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/testing.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


NAMES = re.findall(r"^def (test_\w+)\(", PAGE, re.MULTILINE)


def test_page_has_tests():
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_tests_of_the_page_pass(page, name):
    test = vars(page)[name]
    marks = [mark.args for mark in getattr(test, "pytestmark", [])]
    for values in product(*(values for _, values in marks)):
        names = [argument for argument, _ in marks]
        pages = {"pages": PipelineHarness(page.pipeline, now=0)} if "pages" in signature(test).parameters else {}
        test(**pages, **dict(zip(names, values, strict=True)))


def test_places_of_the_page_exist():
    table = PAGE.partition("| place |")[2].partition("\n\n")[0]
    assert {*re.findall(r"`([a-z]+\.[a-z]+)`", table)} <= crash_points.PLACES
