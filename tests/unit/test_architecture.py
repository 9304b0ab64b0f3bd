"""ARCHITECTURE.md names the packages, layers and modules that the code has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def part(title: str) -> str:
    """Return the text of a section of the page."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def modules_of_way(title: str) -> list[str]:
    return re.findall(r"^\| \d+ \| `([\w.]+)` \|", part(title), re.MULTILINE)


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("headrace")


def test_table_of_layers_is_that_of_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", part("Layers"), re.MULTILINE)
    highest = len(layers) - 1
    expected = [(str(highest - at), name) for at, line in enumerate(layers) for name in line.split(" : ")]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize(
    ("title", "begin"), [("The way of a record", "run.tasks"), ("The way of a state update", "spark.runner")]
)
def test_each_module_of_a_way_is_reached(graph, title, begin):
    modules = [f"headrace.{name}" for name in modules_of_way(title)]
    assert len(modules) > 10
    beginning = f"headrace.{begin}"
    assert [name for name in modules if name != beginning and not graph.chain_exists(beginning, name)] == []


def test_named_files_exist():
    files = re.findall(r"`((?:[a-z_]+/)+\w+\.py)`", part("Where to begin"))
    assert len(files) > 5
    assert [file for file in files if not (ROOT / "engine" / "headrace" / file).is_file()] == []


def test_deciding_modules_exist():
    modules = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", part("Where things are decided"))
    assert len(modules) > 10
    assert [name for name in modules if not (ROOT / "engine/headrace" / f"{name.replace('.', '/')}.py").is_file()] == []
