"""Runs all queries in this process, and prints for each the length of its code, whether it is correct, and the size of its state.

    python -m pipelines.nexmark.table [--events 5000] [--seed 7] [QUERY ...]

`lines` counts the lines of code of the query's module: without imports, records (classes derived from Struct), docstrings,
comments, empty lines, and lines that only close or open brackets. `open` are the entries of state, history and timers
before the input ends, `kept` those after it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import duckdb
import pyarrow as pa

from headrace.testing import PipelineHarness
from pipelines.nexmark.generator import Shape, write_events
from pipelines.nexmark.queries import NAMES
from pipelines.nexmark.runs import QueryRun, Setting

FILES: Final = 5
MOST_LINES: Final = 12
STATE: Final = ("keyed_state", "materializer_history", "timers")
HEAD: Final = ("query", "lines", "correct", "input rows", "result rows", "open", "kept", "seconds")
ENTRY: Final = frozenset(
    {"operator", "key", "state", "namespace", "user_key", "domain", "timestamp", "sequence_number"}
)
"""The columns of those tables that name an entry."""

_BRACKETS: Final = re.compile(r"(pipeline = )?[\[\](){},]*")


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    query: str
    lines: int
    correct: bool
    input_rows: int
    result_rows: int
    open: int
    kept: int
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """Return it as text."""
        counts = (self.input_rows, self.result_rows, self.open, self.kept)
        answer = "yes" if self.correct else "NO"
        return (self.query, str(self.lines), answer, *(f"{count:,}" for count in counts), f"{self.seconds:.1f}")


def lines_of(query: str) -> int:
    """Return the number of code lines of a query; see the module."""
    text = inspect.getsource(import_module(f"pipelines.nexmark.queries.{query}"))
    left_out = {number for first, last in _left_out(ast.parse(text)) for number in range(first, last + 1)}
    lines = ((number, line.partition("  #")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    return sum(
        number not in left_out and not line.startswith("#") and not _BRACKETS.fullmatch(line) for number, line in lines
    )


def measured(query: str, inputs: Path) -> Line:
    """Run a query over the files of `inputs`, and compare it."""
    began = time.perf_counter()
    run = QueryRun(query, inputs, Setting())
    run.take_in()
    before_the_end = _entries(run.harness)
    run.end()
    seconds = time.perf_counter() - began
    differences = run.differences()
    correct = not differences and differences.expected > 0
    rows, kept = differences.actual, _entries(run.harness)
    return Line(query, lines_of(query), correct, run.input_rows(), rows, before_the_end, kept, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for the options of the command line; return 1 if a query is not correct or too long."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.nexmark.table", description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", choices=[[], *NAMES], metavar="QUERY", help="all, unless given")
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=Shape.seed)
    chosen = parser.parse_args(arguments)
    print(_row(HEAD), _row("---" for _ in HEAD), sep="\n")
    good = True
    with TemporaryDirectory() as folder:
        shape = Shape(chosen.events, seed=chosen.seed, gap_ms=100)
        write_events(Path(folder), shape, files=FILES)
        for query in chosen.queries or NAMES:
            line = measured(query, Path(folder))
            good &= line.correct and line.lines <= MOST_LINES
            print(_row(line.cells()), flush=True)
    return 0 if good else 1


def _left_out(module: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and last lines of the parts that are not counted."""
    for node in ast.walk(module):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_import or is_text or _is_record(node)):
            yield node.lineno, node.end_lineno or node.lineno


def _is_record(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == "Struct" for base in node.bases
    )


def _entries(harness: PipelineHarness) -> int:
    return sum(_live(harness.table(name)) for name in STATE)


def _live(rows: pa.Table) -> int:
    """Return the number of live entries in a state table, by the last row of each."""
    if not rows.num_rows:
        return 0
    entry = ", ".join(f'"{name}"' for name in rows.column_names if name in ENTRY)
    with closing(duckdb.connect()) as connection:
        connection.register("rows", rows)
        result = connection.execute(
            f"SELECT count(*) FILTER (WHERE NOT gone) FROM (SELECT arg_max(deleted, checkpoint_id) AS gone FROM rows GROUP BY {entry})"  # noqa: S608 - names of columns
        ).fetchone()
    return int(result[0]) if result else 0


def _row(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
