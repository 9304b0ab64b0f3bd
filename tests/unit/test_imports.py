from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
HEART = [
    "headrace.api",
    "headrace.execution",
    "headrace.state",
    "headrace.async_io",
    "headrace.materializer",
    "headrace.plan",
]

WITHOUT = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "delta", "deltalake", "duckdb", "airflow"}:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
    print(module.name)
"""


@pytest.mark.parametrize("package", HEART)
def test_core_imports_without_spark_delta_and_airflow(package):
    command = [sys.executable, "-W", "error", "-c", WITHOUT, package]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = ROOT / "engine" / package.replace(".", "/")
    assert len(done.stdout.split()) == sum(1 for file in folder.rglob("*.py") if file.name != "__init__.py")


def test_import_linter_holds_the_same_rule():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(c for c in settings["contracts"] if c["name"].startswith("The heart of the engine"))
    assert set(contract["forbidden_modules"]) == {"pyspark", "py4j", "delta", "deltalake", "duckdb", "airflow"}
    assert set(contract["source_modules"]) >= {*HEART}


FRIENDS = {"stream": ("headrace", "operators")}
"""Methods of streams are the door to some operators, whose modules are private like all behind a door."""


def private_imports(file):
    """Return the imports of a module that use a private name of another package."""
    package = file.relative_to(ROOT / "engine").parts[:2]
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("headrace."):
            continue
        names = [*node.module.split("."), *(alias.name for alias in node.names)]
        if tuple(names[:2]) not in {package, FRIENDS.get(package[1])} and any(
            name.startswith("_") and not name.endswith("__") for name in names
        ):
            yield f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"


@pytest.mark.slow
def test_no_package_imports_private_names_of_another():
    files = (ROOT / "engine" / "headrace").rglob("*.py")
    assert [line for file in files for line in private_imports(file)] == []


def test_modules_of_sources_are_in_no_circle():
    graph = grimp.build_graph("headrace")
    modules = graph.find_descendants("headrace.sources")
    assert len(modules) > 20
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) & modules for module in modules})
    assert {*order.static_order()} == modules


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        ("headrace.testing", "pyarrow"),
        ("headrace.execution.keyed_process", "pyarrow"),
        ("headrace.run.tasks", "rocksdict"),
        ("headrace.run.keyed_stage", "rocksdict"),
        ("headrace.local.worker", "psutil"),
        ("headrace.spark.worker_daemon", "msgspec"),
    ],
)
def test_module_leaves_needless_package_for_later(module, needless):
    program = f"import sys, {module}; sys.exit('{needless}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
