"""The step of `make setup` that compiles the engine's module in C."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from tests.jobs.home import PROJECT


@pytest.fixture
def bootstrap(monkeypatch, tmp_path) -> ModuleType:
    """Return the script as a module, which keeps its stamps and logs in `tmp_path`."""
    monkeypatch.syspath_prepend(str(PROJECT / "setup"))
    for name in ("bootstrap", "compile_engine", "environment"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("bootstrap")
    monkeypatch.setattr(module, "STAMPS", tmp_path)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module, "PYTHON", sys.executable)
    return module


def step(bootstrap: ModuleType, compiled: list[str]) -> None:
    def compile_engine() -> str:
        compiled.append("compiled")
        return "The engine runs in C"

    bootstrap._step("engine", bootstrap._compiled_from(), compile_engine, lambda: True)


def test_unchanged_source_is_not_compiled_again(bootstrap, capsys):
    compiled: list[str] = []
    step(bootstrap, compiled)
    step(bootstrap, compiled)
    assert compiled == ["compiled"]
    assert "engine     reused  The engine runs in C" in capsys.readouterr().out


@pytest.mark.parametrize("changed", ["source", "flags", "compiler"])
def test_changed_inputs_are_compiled_again(bootstrap, monkeypatch, tmp_path, changed):
    compiled: list[str] = []
    step(bootstrap, compiled)
    if changed == "source":
        (tmp_path / "_engine.c").write_text("int other;")
        monkeypatch.setattr(bootstrap.engine, "SOURCE", tmp_path / "_engine.c")
    elif changed == "flags":
        monkeypatch.setattr(bootstrap.engine, "FLAGS", ("-O3",))
    else:
        monkeypatch.setattr(bootstrap.engine, "compiler", lambda: "/another/cc")
    step(bootstrap, compiled)
    assert compiled == ["compiled", "compiled"]


def test_setup_goes_on_without_a_compiler(bootstrap, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HEADRACE_PURE_PYTHON", raising=False)
    assert bootstrap._compile_engine().startswith("The engine runs in ")
    assert bootstrap._engine_whole()
