"""The code of pages of docs/ as modules."""

from __future__ import annotations

import re
import sys
from types import ModuleType

from tests.jobs.home import PROJECT


def page_module(name, monkeypatch):
    """Run the Python blocks of docs/NAME.md in one module, and return it."""
    module = ModuleType(f"{name.replace('-', '_')}_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    page = (PROJECT / "docs" / f"{name}.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, f"docs/{name}.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module
