"""Quoting of column names that DuckDB reserves, such as `at` and `end`, in queries that it cannot parse without."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(\w*)\$.*?\$\1\$ | (?P<word>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
_MOST_PLACES = 10
"""Reserved names in a query that are tried in all combinations: about a thousand parses, within 0.1 s."""


def with_quoted_names(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return the query with double quotes around as few column names as necessary, only names that are reserved words.

    A query that DuckDB can parse is not changed, and neither is one that quotes do not help. The columns are those of the
    connection's tables and views.
    """
    if _is_readable(connection, query):
        return query
    places = _places(query, _reserved_columns(connection))
    return next((quoted for quoted in _quoted(query, places) if _is_readable(connection, quoted)), query)


def _is_readable(connection: duckdb.DuckDBPyConnection, query: str) -> bool:
    import duckdb

    try:
        connection.extract_statements(query)
    except duckdb.ParserException:
        return False
    return True


def _reserved_columns(connection: duckdb.DuckDBPyConnection) -> set[str]:
    query = """SELECT DISTINCT keyword_name FROM duckdb_keywords() JOIN duckdb_columns() ON keyword_name = lower(column_name)
               WHERE keyword_category <> 'unreserved'"""
    return {name for (name,) in connection.sql(query).fetchall()}


def _places(query: str, names: set[str]) -> list[tuple[int, int]]:
    """Return the places of the names in a query, except in quotes and comments."""
    words = (match for match in _TOKEN.finditer(query) if match["word"])
    return [match.span() for match in words if match["word"].lower() in names][:_MOST_PLACES]


def _quoted(query: str, places: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the query with quotes at some of the places, fewest first."""
    for count in range(1, len(places) + 1):
        for chosen in itertools.combinations(places, count):
            text = query
            for start, end in reversed(chosen):
                text = f'{text[:start]}"{text[start:end]}"{text[end:]}'
            yield text
