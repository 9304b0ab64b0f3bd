"""Figures of the finished parts of the redesign, and rules that no linter knows."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house import (
    ARROW_SWITCH,
    FORMATS,
    KINDS,
    PACKAGE,
    ROOT,
    SUPPORT,
    code_lines,
    hits,
    lines_in_functions,
    texts,
)

GONE = ["earlier release", r"storage_errors\(", "SourceOffset", r"import_module\(.headrace\.operators"]
MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)\b")
SEARCHES_NOTES = {"edits/erase_survey.py"}
"""A survey looks for the text of a key in notes: they are data of the user there."""


@pytest.mark.parametrize("pattern", GONE)
def test_removed_names_stay_away(pattern):
    assert hits(pattern) == (0, 0)


def test_formats_are_asked_and_never_compared():
    """Facts of a format stand in `config/_source.py` and `config/_sink.py`, its code in its kind."""
    comparisons, _ = hits(FORMATS)
    assert comparisons <= 1
    assert hits(KINDS) == (0, 0)


def test_few_records_files_switch_on_arrow_types():
    """A new type of columns is a class of `column_kinds`; `foreign_values` knows types that no field has."""
    elsewhere = hits(ARROW_SWITCH, PACKAGE / "records")[1] - hits(ARROW_SWITCH, PACKAGE / "records/column_kinds")[1]
    assert elsewhere <= 1


def test_commands_make_reports_and_print_nowhere_else():
    """A command returns one report; `cli/application` prints it, as text or as JSON."""
    assert hits("as_json")[0] <= 6
    assert hits("print_json")[1] == 1


def test_pandas_stays_out_in_three_places():
    """The application for commands that read tables, the tasks of Spark, and the local worker; and the definition."""
    assert hits(r"\bwithout_pandas\(\)") == (4, 4)


def test_credentials_are_handed_on_in_one_object():
    """A `Storage` has a place, what reaches it, and its errors; deltalake's own word for it stands where deltalake is called."""
    assert hits("storage_options")[1] <= 2
    assert hits(r"doing\(")[0] <= 23


def test_helpers_of_tests_stay_few():
    """A helper with one user lives in that test file; helpers of one package live beside its tests. These figures only improve."""
    assert sum(code_lines(text) for _, text in texts(SUPPORT)) <= 2_376
    assert lines_in_functions(ROOT / "tests" / "unit") >= 0.471


def is_shown(path):
    """Return whether the innermost node of a path of nodes is printed or handed on as a note, and decides nothing."""
    return any(
        isinstance(node, ast.FormattedValue | ast.Dict) or (isinstance(node, ast.keyword) and node.arg == "note")
        for node in path
    )


def reads_of_notes(node, path=()):
    """Yield the line of each attribute `note` that is read for more than to be shown."""
    is_call = bool(path) and isinstance(path[-1], ast.Call) and path[-1].func is node
    if isinstance(node, ast.Attribute) and node.attr == "note" and not is_call and not is_shown(path):
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from reads_of_notes(child, (*path, node))


@pytest.mark.slow
def test_no_code_decides_by_a_note():
    """A reason that a user writes may hold any words, also those of our own notes."""
    found_lines = {
        f"{file.relative_to(PACKAGE)}:{line}"
        for file, text in texts(PACKAGE)
        if str(file.relative_to(PACKAGE)) not in SEARCHES_NOTES
        for line in reads_of_notes(ast.parse(text))
    }
    assert found_lines == set()


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("if checkpoint.note == 'again': pass", [1]),
        ("re.match(pattern, checkpoint.note)", [1]),
        ("print(f'because {checkpoint.note}')", []),
        ("commit(note=branch.note or 'none')", []),
        ("row = {'note': branch.note}", []),
        ("notes.note()", []),
    ],
)
def test_reads_of_notes_are_seen(code, lines):
    assert [*reads_of_notes(ast.parse(code))] == lines


OF_USERS = ("pipelines/", "dags/", "tests/test_best.py")


def test_pages_name_modules_that_exist():
    """Only files of a user's own project may be missing. The changelog names what was."""
    pages = [page for page in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")) if page.name != "CHANGELOG.md"]
    named = {
        (page, name) for page in pages for name in MODULE.findall(page.read_text()) if not name.startswith(OF_USERS)
    }
    assert len(named) > 20
    homes = (ROOT, ROOT / "engine", PACKAGE)
    assert [
        (page.name, name) for page, name in sorted(named) if not any((home / name).is_file() for home in homes)
    ] == []
