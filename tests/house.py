"""Print figures of the package and its tests: `python -m tests.house`. Slices of the redesign are done when theirs are reached."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "engine" / "headrace"
SUPPORT = ROOT / "tests" / "unit" / "support"


ARROW_SWITCH = r"pa\.types\.|isinstance\([^)]*\bpa\.\w*Type|(?:==|!=|in) \{?pa\.\w+\(|^\s+pa\.\w+\([^)]*\): "
"""Code that decides by the type of an Arrow column: a test, a comparison, or a table of types."""


def code_lines(text: str) -> int:
    """Count lines with code: neither blank, nor a comment, nor part of a docstring."""
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(
        1 for number, line in lines if line.strip() and not line.strip().startswith("#") and number not in documented
    )


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for file in sorted(folder.rglob("*.py")):
        yield file, file.read_text()


def hits(pattern: str, folder: Path = PACKAGE) -> tuple[int, int]:
    """Return how many lines of how many files match a regular expression."""
    counts = [len(re.findall(pattern, text, re.MULTILINE)) for _, text in texts(folder)]
    return sum(counts), sum(1 for count in counts if count)


def lines_in_functions(folder: Path) -> float:
    """Return the share of the code of test files that lies inside test functions."""
    inside = whole = 0
    for _, text in texts(folder):
        lines = text.splitlines()
        whole += sum(1 for line in lines if line.strip())
        tests = (node for node in ast.parse(text).body if getattr(node, "name", "").startswith("test_"))
        inside += sum(1 for node in tests for line in lines[node.lineno - 1 : node.end_lineno] if line.strip())
    return inside / whole


def shown(pair: tuple[int, int]) -> str:
    return f"{pair[0]:,} in {pair[1]:,}"


FORMATS = r"\.format (?:==|!=|in|not in) "
KINDS = r"isinstance\([^()]*\b(?:(?:Folder|Delta|Kafka|Transformed)\w*(?:Source|Sink)|KafkaPartition|(?:Folder|Table|Topic|Partition)Position)\b"

FIGURES: dict[str, Callable[[], object]] = {
    "files of the package": lambda: sum(1 for _ in texts(PACKAGE)),
    "code lines of the package": lambda: f"{sum(code_lines(text) for _, text in texts(PACKAGE)):,}",
    "files below 50 lines": lambda: sum(1 for _, text in texts(PACKAGE) if 0 < len(text.splitlines()) < 50),
    "code lines of tests": lambda: f"{sum(code_lines(text) for _, text in texts(ROOT / 'tests')):,}",
    "share of tests/unit in test functions": lambda: f"{lines_in_functions(ROOT / 'tests' / 'unit'):.0%}",
    "code lines of tests/unit/support": lambda: f"{sum(code_lines(text) for _, text in texts(SUPPORT)):,}",
    "records that switch on an Arrow type": lambda: shown(hits(ARROW_SWITCH, PACKAGE / "records")),
    "imports of pyspark or py4j": lambda: shown(hits(r"^\s*(?:from|import) (?:pyspark|py4j)")),
    'import_module("headrace': lambda: shown(hits(r'import_module\(f?"headrace')),
    "earlier release": lambda: shown(hits(r"earlier release")),
    "class_archive": lambda: shown(hits(r"class_archive")),
    "storage_options": lambda: shown(hits(r"storage_options")),
    "storage_errors(": lambda: shown(hits(r"storage_errors\(")),
    "doing(": lambda: shown(hits(r"\bdoing\(")),
    "SourceOffset": lambda: shown(hits(r"SourceOffset")),
    "notes that are read": lambda: shown(hits(r"_NOTE|again_note|replay_note|backfill_note")),
    "comparisons of .format": lambda: shown(hits(FORMATS)),
    "isinstance of kinds of sources and sinks": lambda: shown(hits(KINDS)),
    "as_json": lambda: shown(hits(r"as_json")),
    "print_json": lambda: shown(hits(r"print_json")),
    "without_pandas()": lambda: shown(hits(r"\bwithout_pandas\(\)")),
    "code lines of commands": lambda: f"{sum(code_lines(text) for _, text in texts(PACKAGE / 'cli')):,}",
    "set_slot, attach": lambda: shown(hits(r"set_slot|\.attach\(")),
}


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        print(f"{name:40} {figure()}")
