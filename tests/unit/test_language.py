"""Plain English, as far as a test can check it: first words of docstrings, names of locals, documented errors."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from functools import cache
from typing import Any

import pytest

from tests.jobs.home import PROJECT

PACKAGE = PROJECT / "engine" / "headrace"

# Add a package here when its language is plain.
PACKAGES = [
    "airflow",
    "api",
    "async_io",
    "cli",
    "commit",
    "config",
    "execution",
    "local",
    "materializer",
    "operators",
    "plan",
    "readers",
    "sinks",
    "sources",
    "spark",
    "state",
    "tables",
    "testing",
]

TEST_FOLDERS = sorted({str(file.parent.relative_to(PROJECT)) for file in (PROJECT / "tests").rglob("test_*.py")})
LONGEST_NAME = 8

# Words that leave the subject or the outcome of a test open.
OPEN_WORDS = {"deed", "deeds", "senseless", "tells", "told", "what", "whatever", "whoever", "whom"}
OPEN_FIRST_WORDS = {"a", "an", "it", "nobody", "or", "others", "so", "the", "them", "they", "what", "who"}

# Add a door here when its public functions document their errors.
DOORS = ["headrace", "headrace.operators", "headrace.testing"]

RIDDLES = {"What", "Whether", "See"}
VAGUE_NAMES = {"each", "found", "gone", "made", "said", "told"}

# Words of sentences that the field does not have, or that have a noun or a verb of their own.
DIALECT = re.compile(
    r"given up on|gave up on|for want of|own ones of|clock of the wall|whichever way|no run be on|raises what",
    re.IGNORECASE,
)
# Former names, by the word of the glossary that took their place: each word has one meaning.
FORMER_NAMES = {
    "call": r"AsyncElement|StoredElement",
    "response": r"Kept[A-Z]\w*Answers?|KeptAnswers?|LiveAnswers|ANSWERS|(?:keep|keeps|takes|kept|live|read|unexpired)_answers|answered_at",
    "in memory": r"answers_at_once",
    "timeline": r"LineSlice|LineResult|Line|line_watermarks|_?first_in_line",
    "lineage": r"trail|FollowedLine|LineGraph|LineNode|line_time|branch_line|line_graph",
    "status": r"Standing|standing|sink_standing",
    "problem": r"Faults?|FileFault|faults_by_row|\w+_faults",
    "error": r"KafkaFaults|DeltaFaults",
    "timestamp": r"moments?|moment_text|parse_moment|first_moment",
    "access": r"Moment|TtlMoment|BroadcastMoment",
    "lifetime": r"Life|lives",
    "transform": r"SparkStep|StatelessStep|SourceStep|StepPlan|StepTask",
    "position": r"SourceOffset",
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def nodes_of(folder):
    """Yield the place and the node of everything in the files of a folder."""
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder)
        for node in ast.walk(ast.parse(file.read_text())):
            yield f"{place}:{getattr(node, 'lineno', 1)}", node


def local_names(node):
    """Return the names that a node gives to values."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
            return {name}
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return {name}
    return set()


@cache
def names_in_code():
    """Return the place and the text of each name in the code of the package."""
    names = []
    for file in sorted(PACKAGE.rglob("*.py")):
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        place = file.relative_to(PACKAGE)
        names += [(f"{place}:{token.start[0]}", token.string) for token in tokens if token.type == tokenize.NAME]
    return names


def names_in(target):
    """Return the names in the target of a loop."""
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def names_of_tests(folder):
    """Return the names of all tests in a folder."""
    trees = [ast.parse(file.read_text()) for file in (PROJECT / folder).glob("test_*.py")]
    functions = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]


def raises(function):
    """Return whether a function's own body, without functions in it, raises an error that its class does not document."""
    definition: Any
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    open_nodes = list(definition.body)
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.Raise) and not is_unbound(node):
            return True
        if not isinstance(node, SCOPES):
            open_nodes.extend(ast.iter_child_nodes(node))
    return False


def is_unbound(node):
    """Return whether a method of a declared state raises what `State` documents for all of them."""
    return node.exc is not None and ast.unparse(node.exc) == "self._unbound()"


def functions_of(cls):
    """Yield name, function and docstring of a class's public methods, its own and inherited ones, and of its constructor."""
    for owner in cls.__mro__:
        if not owner.__module__.startswith("headrace."):
            continue
        for name, member in vars(owner).items():
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
            if inspect.isfunction(function) and function.__code__.co_filename.startswith(str(PACKAGE)):
                if not name.startswith("_"):
                    yield f"{owner.__name__}.{name}", function, function.__doc__
                elif name in {"__init__", "__post_init__"}:
                    yield cls.__name__, function, cls.__doc__


def public_functions(door):
    """Yield name, function and docstring of all functions that users of a door can call."""
    module = importlib.import_module(door)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield from functions_of(value)
        elif inspect.isfunction(value):
            yield name, value, value.__doc__


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_no_riddle(package):
    documented = (
        (place, ast.get_docstring(node)) for place, node in nodes_of(PACKAGE / package) if isinstance(node, DOCUMENTED)
    )
    assert [place for place, text in documented if text and text.split()[0].strip(".,:") in RIDDLES] == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["engine/headrace", "tests", "benchmarks", "pipelines", "setup"])
def test_locals_have_specific_names(folder):
    vague = [
        place
        for place, node in nodes_of(PROJECT / folder)
        if local_names(node) & VAGUE_NAMES
        or (isinstance(node, COMPREHENSIONS) and any("one" in names_in(loop.target) for loop in node.generators))
    ]
    assert vague == []


def test_pages_and_code_have_no_dialect():
    pages = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *(PROJECT / "docs").rglob("*.md")]
    code = [
        file for folder in ("engine", "tests", "benchmarks", "pipelines") for file in (PROJECT / folder).rglob("*.py")
    ]
    assert [
        file.name for file in [*pages, *code] if file.name != "test_language.py" and DIALECT.search(file.read_text())
    ] == []


@pytest.mark.parametrize("word", FORMER_NAMES)
def test_glossary_has_one_name_for_each_thing(word):
    former = re.compile(FORMER_NAMES[word])
    places = [f"{place} {name}" for place, name in names_in_code() if former.fullmatch(name)]
    assert places == []


@pytest.mark.parametrize("folder", TEST_FOLDERS)
def test_test_names_have_at_most_eight_words(folder):
    names = names_of_tests(folder)
    assert names
    assert [name for name in names if len(name.split("_")) - 1 > LONGEST_NAME] == []


@pytest.mark.parametrize("folder", TEST_FOLDERS)
def test_test_names_state_subject_and_outcome(folder):
    words = {name: name.split("_")[1:] for name in names_of_tests(folder)}
    assert [name for name, (first, *_) in words.items() if first in OPEN_FIRST_WORDS] == []
    assert [name for name, parts in words.items() if OPEN_WORDS & {*parts}] == []


@pytest.mark.parametrize("door", DOORS)
def test_public_functions_document_their_errors(door):
    functions = public_functions(door)
    silent = {name for name, function, text in functions if raises(function) and "Raises" not in (text or "")}
    assert sorted(silent) == []


def test_states_document_errors_outside_of_tasks():
    from headrace.api.states import State

    assert "Raises `RuntimeError` from every method" in inspect.getdoc(State)
