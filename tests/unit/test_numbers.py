"""Numbers in texts for people: the noun behind a number is singular where the number is one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.names import counted
from tests.jobs.home import PROJECT

PACKAGE = PROJECT / "engine" / "headrace"
NOUNS = (
    "bytes|calls|characters|checkpoints|columns|elements|entries|failures|fields|files|folders|hours|intervals|jobs|keys|lines|"
    "messages|operators|partitions|places|records|requests|rows|runs|seconds|sinks|sources|states|tables|tasks|timers|times|versions"
)
ADJECTIVES = "bad|input|key|keyed|late|more|new|open|other|row|such|uncommitted|waiting|whole"
COUNTED = re.compile(rf" (?:(?:{ADJECTIVES}) )?(?:{NOUNS}|groups|kinds)\b|[ \w]+\(s\)")
IN_SOURCE = re.compile(rf"}}{COUNTED.pattern}")

# Texts whose number is never one, or whose word before the noun is no number.
REASONS = {
    "LONG_HISTORY:,": "a constant above one",
    "_ATTEMPTS": "a constant above one",
    "_LONGEST_NAME": "a constant above one",
    "_ROWS": "a constant above one",
    "deaths": "as many as all tries, more than one",
    "counted[twice[0]]": "what is there twice",
    "len(texts):,": "rows that meet are two at least",
    "len(self._ranks)": "more than a limit",
    "len(uses)": "more than a limit",
    "config.format": "the name of a format",
    "kind": "the name of a format",
    "self._wanted": "the name of a format",
    "side.name": "left or right",
    "file.size:,": "no table has a file of one byte",
    "what": "a clause",
    "limit": "a name with its number in brackets",
    "uri": "a place",
    "estimate['input_rate']:g": "a rate, as 0.5 records/s",
}


def expressions(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the text and the text behind it, of each expression in an f-string of a file."""
    source = file.read_text()
    # Parsing the whole package takes seconds.
    if IN_SOURCE.search(source) is None:
        return
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        for value, rest in pairwise(text.values):
            if isinstance(value, ast.FormattedValue) and isinstance(rest, ast.Constant):
                yield value.lineno, ast.unparse(ast.JoinedStr([value]))[3:-2], rest.value


def uncounted(folder: Path) -> list[str]:
    """Return the places where a number meets a plural without `counted()`."""
    return [
        f"{file.relative_to(folder)}:{line} {{{expression}}}{text[:30]}"
        for file in sorted(folder.rglob("*.py"))
        for line, expression, text in expressions(file)
        if COUNTED.match(text) and expression not in REASONS and not expression.startswith(("counted(", "rows_text("))
    ]


def test_numbers_agree_with_their_nouns():
    assert uncounted(PACKAGE) == []


def test_plural_behind_any_number_is_noticed(tmp_path):
    (tmp_path / "one.py").write_text(
        'f"{n} rows"; f"{len(x):,} such files)"; f"{counted(n, \'row\')} wait"; f"{n} file(s)"; f"{n} is"'
    )

    assert [place.partition(" ")[2] for place in uncounted(tmp_path)] == [
        "{n} rows",
        "{len(x):,} such files)",
        "{n} file(s)",
    ]


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2_000, "2,000 rows")])
def test_one_is_singular(number, text):
    assert counted(number, "row") == text


def test_plural_may_be_given():
    assert [counted(number, "entry is", "entries are") for number in (1, 3)] == ["1 entry is", "3 entries are"]
