"""The examples of docs/pipeline.md are pipelines, and the page's diagram equals the output of `explain`."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from headrace.cli.graphs import mermaid
from headrace.plan.planner import plan_stages
from tests.jobs.home import PROJECT

PAGE = (PROJECT / "docs" / "pipeline.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def page(monkeypatch):
    """Return the module of the page's code, up to a block."""

    def run(count: int) -> ModuleType:
        module = ModuleType("pipeline_page")
        monkeypatch.setitem(sys.modules, "pipeline_page", module)
        for code in blocks("python")[:count]:
            exec(compile(code, "docs/pipeline.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
        return module

    return run


def test_branches_are_planned(page):
    plan = plan_stages(page(1).pipeline)
    assert [stage.name for stage in plan.keyed] == ["totals", "totals_rows"]
    assert plan.groups == (("orders", "refunds"),)


def test_page_diagram_equals_the_explain_output(page):
    (picture,) = blocks("mermaid")
    assert mermaid(page(1).pipeline) == picture.rstrip("\n")


def test_two_inputs_are_planned(page):
    (stage,) = plan_stages(page(2).pipeline).keyed
    assert [record.__name__ for record in stage.takes] == ["Order", "Payment"]
