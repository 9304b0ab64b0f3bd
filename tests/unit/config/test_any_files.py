"""Job files and profiles with any content: each loads, or is refused with its name, the line and advice."""

from __future__ import annotations

import copy
import os
import re
import tempfile
from contextlib import suppress
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import JobFile, load_cluster, load_job
from headrace.config._values import format_duration
from headrace.errors import ConfigError
from tests.unit.config.conftest import CLUSTER, JOB
from tests.unit.support.fuzzing import examples

REPOSITORY = Path(__file__).parents[3]
FULL = """\
description: All there is.
tags: [a, b]
schedule: {cron: 0 5 * * *, start: 2026-01-01, timezone: Europe/Berlin}
max_parallelism: 64
parallelism: 4
state: {root: var/state, backend: delta, cache_bytes: 1000}
watermark: {bucket: 10}
services: {weather: {url: 'http://127.0.0.1:8013', rate: 0.5, concurrency: 3}}
async_io: {lookup: {capacity: 3, timeout: 30s, park_after: 1m}}
execution: {async-state: {buffer-size: 3}}
operators: {legs: {execution: {async-state: {enabled: false}}}}
run: {budget: 1h30m, lease: 30s, retries: 0}
compaction: {every: null}
retention: {hours: 24}
"""
JOBS = [JOB, JOB + FULL, (REPOSITORY / "conf/jobs/flights.yaml").read_text(encoding="utf-8")]
PROFILES = [CLUSTER, *(file.read_text(encoding="utf-8") for file in sorted((REPOSITORY / "conf/clusters").glob("*")))]

NUMBERS = [None, True, -1, 0, 2**31, 2**63, 10**400, 1e400, float("nan"), 0.5]
TEXTS = [
    "",
    " ",
    "~",
    "nan",
    "1__0",
    "0x1f",
    "1e3",
    ".",
    "..",
    "\0",
    "a\0b",
    "\x85",
    "\ufeff",
    "\U0001f9ff",
    "x" * 300,
    "9" * 50,
]
REFERENCES = ["${", "${}", "${HOME}", "${NOT SET}", "${NOBODY_SET_THIS}", "${X:-}", "${X:-${Y}}", "$${X}"]
PLACES = ["s3://", "file://[x/", "file:///%zz", "memory://x/y", "://", "http://a:99999", "http://u:p@x"]
TIMES = ["@daily", "0 0 31 2 *", "%Q", "%Y%Y", "%", "%Y-%m-%d", "1h1h", "2013-01-31", "0001-01-01T00:00:00+14:00"]
TIMESTAMPS = [date(1, 1, 1), datetime(9999, 12, 31, 23, 59)]  # noqa: DTZ001 - YAML has such timestamps
ODD_SCALARS = st.sampled_from([*NUMBERS, *TEXTS, *REFERENCES, *PLACES, *TIMES, *TIMESTAMPS])
SCALARS = ODD_SCALARS | st.text(max_size=8) | st.integers() | st.floats()
KEYS = (
    st.text(max_size=8) | st.sampled_from(["path", "job", "<<", "spark", "password", "state", "", "a.b", "é"]) | SCALARS
)
TREES = st.recursive(
    SCALARS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(KEYS.filter(lambda key: key == key), parts, max_size=3),  # noqa: PLR0124 - NaN
    max_leaves=8,
)
PIECES = [
    "\t",
    "\r",
    "&a ",
    "*a",
    "<<: *a\n",
    "!!python/name:os.system ",
    "!!binary ",
    "? ",
    "- ",
    "{",
    "[",
    "]",
    "}",
    ": ",
    "|\n",
]
PIECES += [
    "---\n",
    "...\n",
    "%YAML 9.9\n",
    "#",
    "'",
    '"',
    '"\\0"',
    '"\\ud800"',
    "\x00",
    "\x01",
    "\ufeff",
    "${HOME}",
    "[" * 101,
    "{a: " * 101,
]
BYTES = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"\xfe\xff"]


def places(tree, path=()):
    """Walk the paths of all values in a tree."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


@st.composite
def changed_trees(draw, texts):
    """A valid file with a few values deleted, retyped, exchanged, nested or renamed."""
    tree = yaml.safe_load(draw(st.sampled_from(texts)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in places(tree) if path] or [()]))
        if not path:
            break
        above, key = at(tree, path[:-1]), path[-1]
        change = draw(st.sampled_from(["delete", "retype", "exchange", "nest", "rename"]))
        if change == "delete":
            del above[key]
        elif change == "retype":
            above[key] = draw(TREES)
        elif change == "exchange":
            above[key] = copy.deepcopy(at(tree, draw(st.sampled_from([path for path in places(tree) if path]))))
        elif change == "nest":
            above[key] = draw(st.sampled_from([[above[key]], {"a": above[key]}, {key: above[key]}]))
        elif isinstance(above, dict):
            new = draw(KEYS.filter(lambda key: key == key))  # noqa: PLR0124 - NaN
            above[new] = above.pop(key)
    return dumped(tree)


def dumped(tree):
    with suppress(RecursionError, yaml.YAMLError):
        return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")
    return b""


@st.composite
def changed_texts(draw, texts):
    """Draw a valid file with lines doubled, dropped and moved, and pieces of YAML or bytes inserted anywhere."""
    lines = draw(st.sampled_from(texts)).splitlines(keepends=True)
    for _ in range(draw(st.integers(0, 2))):
        line = lines.pop(draw(st.integers(0, len(lines) - 1)))
        for _ in range(draw(st.integers(0, 2))):
            lines.insert(draw(st.integers(0, len(lines))), line)
    content = "".join(lines).encode()
    for piece in draw(st.lists(st.sampled_from(PIECES).map(str.encode) | st.sampled_from(BYTES), max_size=3)):
        place = draw(st.integers(0, len(content)))
        content = content[:place] + piece + content[place:]
    return content


def files(texts):
    return changed_trees(texts) | changed_texts(texts) | TREES.map(dumped) | st.binary(max_size=64)


@pytest.fixture(scope="module")
def project():
    """A home folder that all examples write into."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for kind in ("jobs", "clusters"):
            (home / "conf" / kind).mkdir(parents=True)
        (home / "conf/clusters/local.yaml").write_text(CLUSTER)
        yield home


def put(project, place, content):
    file = project / "conf" / place
    file.write_bytes(content)
    return file


def loaded(load, file):
    """Return the loaded config; None if the file is refused with its name and a line."""
    try:
        return load()
    except ConfigError as error:
        message = str(error)
    names_line = re.search(rf"{re.escape(str(file))}:[0-9]+: .", message)
    assert names_line, message
    return None


@examples(150)
@given(content=files(JOBS))
@example(content=JOB.encode() + b"tags: " + b"[" * 100_000)
@example(content=JOB.replace("data/events", '"a\\0b"').encode())
@example(content=JOB.encode() + b"owner: \xff")
@example(content=JOB.encode() + b"parallelism: " + b"9" * 5000)
@example(content=JOB.encode() + b"services: {a: {url: 'http://a', rate: " + b"9" * 400 + b"}}")
def test_any_job_file_loads_or_is_refused(project, content):
    file = put(project, "jobs/demo.yaml", content)
    loaded(lambda: load_job("demo", project), file)


@examples(60)
@given(content=files(PROFILES), keep=st.booleans())
def test_any_profile_loads_or_is_refused(project, content, keep):
    file = put(project, "clusters/other.yaml", content)
    loaded(lambda: load_cluster("other", project, keep_references=keep), file)


@examples(40)
@given(content=files(JOBS))
def test_check_ends_with_a_documented_code(project, content):
    put(project, "jobs/demo.yaml", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_HOME", str(project))
        result = CliRunner().invoke(app, ["check", "demo"])
    assert result.exit_code in {0, 1, 2}, result.output
    assert "Traceback" not in result.output


@examples(100)
@given(content=changed_trees([JOB + FULL]) | changed_texts(JOBS))
@example(content=(JOB + FULL).encode())
def test_loading_twice_gives_equal_configs(project, content):
    def first_values(config):
        return JobFile(**{name: getattr(config, name) for name in JobFile.__struct_fields__})

    def plain(value):
        """Return a loaded value in the form of a file."""
        if isinstance(value, msgspec.Struct):
            fields = msgspec.structs.fields(value)
            return {field.encode_name: plain(getattr(value, field.name)) for field in fields}
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, timedelta):
            return format_duration(value)
        return value.isoformat() if isinstance(value, datetime) else value

    file = put(project, "jobs/demo.yaml", content)
    first = loaded(lambda: load_job("demo", project), file)
    if first is None:
        return
    put(project, "jobs/demo.yaml", dumped(plain(first_values(first))))
    again = load_job("demo", project)
    assert first_values(again) == first_values(first)


REFUSED = {
    "deep nesting": (b"tags: " + b"[" * 100_000, ":10: lists and mappings are nested more than 100 deep"),
    "no UTF-8": (b"owner: \xff\n", r":10: this is not UTF-8 \(byte 0xff\); save the file as UTF-8"),
    "a control character": (b"owner: \x01\n", r":10: .*the character U\+0001 is not allowed"),
    "a NUL in a path": (b'state: {root: "a\\0b"}\n', r":10: state.root: the character U\+0000 is not allowed"),
    "too many digits": (
        b"parallelism: " + b"9" * 5000,
        ":10: parallelism: expected a whole number, got a text of 5,000 characters",
    ),
    "more than 64 bits": (b"watermark: {bucket: 9223372036854775808}\n", "whole numbers have 64 bits"),
    "more key groups than 32 bits": (b"max_parallelism: 2147483648\n", ":10: max_parallelism: .*<= 2147483647"),
    "a rate without end": (b"services: {a: {url: 'http://a', rate: " + b"9" * 400 + b"}}\n", "expected a number"),
    "underscores in a row": (b"parallelism: 1__0\n", r"expected a whole number, got .*\(1__0\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_bytes_are_refused_with_their_line(project, name):
    added, message = REFUSED[name]
    put(project, "jobs/demo.yaml", JOB.encode() + added)
    with pytest.raises(ConfigError, match=message):
        load_job("demo", project)


@pytest.mark.parametrize("pattern", ["%Q", "%Y%Y", "%Y-%m-%d%", "%m-%d", "%Y-%V"])
def test_pattern_no_date_fits_is_refused(project, pattern):
    put(project, "jobs/demo.yaml", JOB.replace("data/events", f"data/events\n    interval: '{pattern}'").encode())
    with pytest.raises(ConfigError, match=r":6: sources.events.interval: .* gives no intervals: .*(write|add)"):
        load_job("demo", project)


@pytest.mark.parametrize(
    "pattern", ["%Y-%m-%d", "%Y%m%dT%H%M", "day-%j-%Y", "%Y-%m-%dT%H%z", "%G-W%V-%u", "%G-%V", "%Y-%W", "100%%-%Y"]
)
def test_patterns_of_dates_are_taken(project, pattern):
    put(project, "jobs/demo.yaml", JOB.replace("data/events", f"data/events\n    interval: '{pattern}'").encode())
    assert load_job("demo", project).sources["events"].interval == pattern


def test_variable_that_is_not_utf8_is_refused(project, monkeypatch):
    monkeypatch.setitem(os.environ, "ODD", "a\udcff")
    put(project, "jobs/demo.yaml", JOB.encode() + b"owner: ${ODD}\n")
    with pytest.raises(ConfigError, match=":10: owner: .*is not UTF-8"):
        load_job("demo", project)
