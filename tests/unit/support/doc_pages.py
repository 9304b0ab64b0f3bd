"""The blocks of README.md and of the pages of docs/: their code as modules, their commands and outputs."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from tests.jobs.home import PROJECT

PAGES = {path.stem: path for path in sorted([PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")])}

# Parts of outputs that differ from run to run, or from machine to machine.
VOLATILE = (
    (re.compile(r"^.*T\d\d:\d\d:\d\dZ (opened|starting|batch|committed):.*$", re.MULTILINE), ""),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|seconds +[\d.]+ at the first time"), "TIME"),
    (re.compile(r"part-\d+-[0-9a-f-]+-c000\.snappy\.parquet"), "FILE"),
    (re.compile(r"manual-[0-9a-f…]+"), "RUN"),
    (re.compile(r"\S*/(var/state|var/lake|conf/jobs)/"), r"HOME/\1/"),
    (re.compile(r"(?<=\d,)\s+[\d,]+\s+bytes"), " SOME bytes"),
    (re.compile(r"[─│…]+"), " "),
)


class Block(NamedTuple):
    """A block of a page; `text` has no indentation."""

    page: str
    line: int
    language: str
    text: str

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Each command after a `$`, and the output that the page shows below it."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        return [divided(part) for part in parts]


def divided(part: str) -> tuple[str, str]:
    """Return a command, which ends with a line and outside of quotes, and its output."""
    lines = part.splitlines(keepends=True)
    for number in range(1, len(lines) + 1):
        command = "".join(lines[:number])
        if command.count('"') % 2 == 0:
            return command.strip(), "".join(lines[number:])
    raise ValueError(f"a quotation has no end: {part}")


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks of docs/PAGE.md, or of README.md."""
    text = PAGES[page].read_text()
    for match in re.finditer(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], textwrap.dedent(match[2]))


def calls_of(page: str, command: str) -> list[tuple[str, str]]:
    """Return the commands, with their outputs, of the only block of a page that begins with this command."""
    (block,) = [block for block in blocks_of(page) if block.text.startswith(f"$ {command}")]
    return block.calls


def normalised(text: str) -> list[str]:
    """Return the words of an output without what differs from run to run, sorted: the page may wrap them elsewhere."""
    return sorted(without_volatile(text).split())


def without_volatile(text: str) -> str:
    """Return a text with fixed words for times, ids of runs and folders."""
    for pattern, replacement in VOLATILE:
        text = pattern.sub(replacement, text)
    return text


def shows(page: str, printed: str) -> bool:
    """Return whether a page shows this output; a line of three dots on the page stands for omitted lines."""
    parts = re.split(r"^ *\.\.\.$", page, flags=re.MULTILINE)
    if len(parts) == 1:
        return normalised(page) == normalised(printed)
    text, start = one_line(printed), 0
    for part in map(one_line, parts):
        place = text.find(part, start)
        if place < 0:
            return False
        start = place + len(part)
    return text.startswith(one_line(parts[0])) and text.endswith(one_line(parts[-1]))


def one_line(text: str) -> str:
    """Return a text without line breaks, and without what differs from run to run."""
    return " ".join(without_volatile(text).split())


def page_module(name, monkeypatch):
    """Run the Python blocks of docs/NAME.md in one module, and return it."""
    module = ModuleType(f"{name.replace('-', '_')}_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    page = (PROJECT / "docs" / f"{name}.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, f"docs/{name}.md", "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module
