"""Tables at any width: no word and no number is broken, and no cell is lost."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.output import cell_width, short_run_id, shown, shown_stored, table
from headrace.log.checkpoint import Kind
from tests.unit.support.demo_job import START, entry, timestamp

RUNS = ("scheduled__2013-01-31T00:00:00+00:00", "manual__2026-11-23T05:18:55.123456+00:00_AbCdEf", "run-7")
WIDTHS = st.integers(20, 160)
WORDS = st.text(st.characters(categories=["L", "N", "P"], exclude_characters="…"), min_size=1, max_size=40)
VALUES = st.one_of(
    st.lists(WORDS, max_size=8).map(" ".join),
    st.integers(-(10**18), 10**18),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.datetimes(timezones=st.just(UTC)),
    st.dictionaries(WORDS, st.integers() | WORDS | st.datetimes(), max_size=3),
    st.sampled_from(RUNS),
    st.booleans(),
    st.none(),
)
NAMES = ("job", "run", "rows in", "what was found", "value")


@st.composite
def tables(draw):
    count = draw(st.integers(1, len(NAMES)))
    rows = draw(st.lists(st.tuples(*[VALUES] * count), min_size=1, max_size=5))
    return NAMES[:count], rows


def words(text: str) -> list[str]:
    """Return the words of a text. A time counts as two words: it may be wrapped between date and time."""
    return re.sub(r"(\d{4}-\d\d-\d\d)T(?=\d\d:)", r"\1 ", re.sub("[─│├└\xa0]", " ", text)).split()


@given(tables(), WIDTHS)
def test_no_word_is_broken_at_any_width(drawn, width):
    columns, rows = drawn
    lines = table(columns, rows).lines(width)
    expected = {word for name in columns for word in words(name)}
    for row in rows:
        expected |= {word for value in row for word in words(shown(value))}
    short = {short_run_id(shown(row[at])) for row in rows for at, name in enumerate(columns) if name == "run"}
    assert {word for line in lines for word in words(line)} <= expected | {
        word for text in short for word in words(text)
    }


@given(tables(), WIDTHS)
def test_only_a_long_word_exceeds_the_width(drawn, width):
    columns, rows = drawn
    for line in table(columns, rows).lines(width):
        last = line.split()[-1:] or [""]
        assert cell_width(line) <= width or line.index(last[0]) <= max(map(len, NAMES)) + 3


@given(tables(), WIDTHS)
def test_every_word_of_a_cell_is_shown(drawn, width):
    columns, rows = drawn
    rest = [at for at, name in enumerate(columns) if name != "run"]
    lines = words(" ".join(table(columns, rows).lines(width)))
    for row in rows:
        assert {word for at in rest for word in words(shown(row[at]))} <= {*lines}


@given(tables())
def test_without_a_limit_each_row_is_one_line(drawn):
    columns, rows = drawn
    lines = table(columns, rows).lines(1_000_000)
    assert len(lines) == len(rows) + 4
    assert all(run in "\n".join(lines) for row in rows for run in row if run in RUNS)


@given(st.lists(st.sampled_from(RUNS[:2]), unique=True, min_size=1))
def test_ids_of_runs_are_shortened_in_the_middle(runs):
    lines = "\n".join(table(("id", "run"), [(at, run) for at, run in enumerate(runs)]).lines(36))
    for run in runs:
        assert f"{run[:21]}…{run[-3:]}" in lines


def test_different_runs_never_look_the_same():
    runs = [f"scheduled__2013-01-31T{hour:02}:00:00+00:00" for hour in range(3)]
    lines = "\n".join(table(("run", "note"), [(run, "x" * 30) for run in runs]).lines(40))
    assert all(run in lines for run in runs)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ('{"at":1359608400000,"n":7}', '{"at": 1359608400000 (2013-01-31T05:00:00Z), "n": 7}'),
        ("1359608400000", "1359608400000 (2013-01-31T05:00:00Z)"),
        ('{"text":"1359608400000, or a:b"}', '{"text": "1359608400000, or a:b"}'),
        ("[123456789012345678,1.5e3,-1359608400000]", "[123456789012345678, 1.5e3, -1359608400000]"),
        ("1359608400000.5", "1359608400000.5"),
        ("no JSON: 1359608400000", "no JSON: 1359608400000"),
    ],
)
def test_times_within_stored_values_are_readable(stored, expected):
    assert shown_stored(stored) == expected


NESTED = st.recursive(
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(NESTED)
def test_stored_json_reads_the_same_without_its_times(value):
    shown_text = shown_stored(msgspec.json.encode(value).decode())
    without = re.sub(r'("(?:[^"\\]|\\.)*")|( \(20[\d:.TZ-]+\))', lambda match: match[1] or "", shown_text)
    assert msgspec.json.decode(without) == msgspec.json.decode(msgspec.json.encode(value))


def test_moments_within_values_are_in_utc():
    value = {"leg": [{"at": datetime(2013, 1, 31, 5, tzinfo=UTC)}], "gap": Decimal("1.50")}
    assert shown(value) == '{"leg": [{"at": "2013-01-31T05:00:00Z"}], "gap": "1.50"}'


def test_data_cannot_send_terminal_control_codes():
    assert shown("a\x1b[2Jb\rc\td") == "a\\x1b[2Jb\\x0dc d"


COMMANDS = (
    "status",
    "checkpoints",
    "jobs",
    "state list",
    "state get N7",
    "state scan",
    "state history N7",
    "state expired",
    "waiting --timers --all",
    "quarantine",
    "verify",
    "doctor",
    "explain",
    "sql demo",
)
QUERY = "select run_id, checkpoint_id, 123456789012345678 as big, committed_at, {'at': committed_at} as nested from checkpoints order by 2"


@pytest.fixture
def wide(state):
    """The demonstration job with a long id of a run, a large number, and a value with a time in it."""
    number = state.log.last.checkpoint_id + 1
    value = f'{{"at":{START},"flight":123456789012345678,"route":["JFK","LAX"]}}'
    state.add("keyed_state", [entry("N7", value, number)])
    state.commit(Kind.BATCH, run_id=RUNS[0], metrics={"rows_in": 10**15})
    return state


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_break_no_word_at_any_width(headrace, wide, monkeypatch, command):
    def printed(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        return headrace(*command.split(), *([QUERY] if command.startswith("sql") else [])).stdout

    whole = {*words(printed(100_000)), *map(short_run_id, RUNS)}
    for columns in 60, 80, 120:
        text = re.sub(r"\(too narrow for [^)]*\)", "", printed(columns))
        assert {*words(text)} <= whole
        longest = max(map(len, text.split()))
        assert max(map(len, text.splitlines())) <= max(columns, longest + 40)


@pytest.mark.parametrize("command", ["checkpoints", "state scan", "sql demo"])
def test_piped_output_is_not_wrapped(headrace, wide, monkeypatch, command):
    arguments = [*command.split(), *([QUERY] if command.startswith("sql") else [])]
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = headrace(*arguments).stdout
    monkeypatch.setenv("COLUMNS", "100000")
    assert piped == headrace(*arguments).stdout
    assert "123456789012345678" in piped.replace(",", "") or command == "checkpoints"
    assert RUNS[0] in piped or command == "state scan"


LONG = "delay_propagation_of_the_fleet"


@pytest.mark.parametrize(
    ("width", "headings", "left_out"),
    [
        (200, ("operator", "state", "kind", "entries", "keys", "bytes", "last_change"), None),
        (80, ("operator", "state", "kind", "entries", "keys", "bytes"), "last_change"),
        (72, ("operator", "state", "kind", "entries", "bytes"), "keys, last_change"),
        (30, (), None),
    ],
)
def test_list_of_states_does_without_some_columns(headrace, state, monkeypatch, width, headings, left_out):
    state.add("keyed_state", [{**entry("N9", '"JFK"', 5), "operator": LONG}])
    state.commit(Kind.BATCH)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = headrace("state list demo").stdout.splitlines()
    assert headings == () or tuple(lines[1].split()) == headings
    assert headings == () or max(map(len, lines)) <= width
    notes = [line for line in lines if "too narrow for" in line]
    assert notes == ([] if left_out is None else [f" (too narrow for {left_out}: see --json, or a wider terminal)"])
    assert any(line.split()[:2] == ["last_change", "5"] for line in lines) is (headings == ())


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (200, ["keyed_state", LONG, "last_leg", "1", "0", "0", "0"]),
        (80, ["keyed_state", LONG, "last_leg", "1", "added"]),
    ],
)
def test_numbers_of_a_difference_become_words(headrace, state, monkeypatch, width, line):
    state.add("keyed_state", [{**entry("N9", '"JFK"', 5), "operator": LONG}])
    state.add("materializer_history", [_row_of_history("N9"), _row_of_history("N10")])
    state.commit(Kind.BATCH)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = headrace("diff demo").stdout.splitlines()
    assert line in [own.split() for own in lines]
    assert not any("too narrow" in own for own in lines)


def _row_of_history(key):
    row = {"operator": LONG, "key": f'"{key}"', "sequence_number": 1, "row": "{}", "row_kind": "+I"}
    return {**row, "inserted_at": timestamp(0), "checkpoint_id": 5}


def test_blocks_show_whole_run_ids_where_they_fit():
    run = RUNS[0]
    row = (run, "word " * 20, "x" * 40)
    blocks = "\n".join(table(("run", "note", "file"), [row]).lines(60))
    assert run in blocks
    assert "…" not in blocks
    assert "…" in "\n".join(table(("run", "note", "file"), [row]).lines(40))
