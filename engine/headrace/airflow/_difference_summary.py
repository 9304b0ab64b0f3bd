"""Plan of a backfill, and summary of a branch's differences, as Markdown.

Airflow's database stores them: they have only numbers of rows, unless the job's file allows changed rows in `rows_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from headrace.names import counted

_CHANGES: Final = ("added", "gone", "changed", "renewed")
_OF_THE_COMMAND: Final = "then"
"""Label of the line of a plan that says what the command does with the result."""
_LONGEST_CELL: Final = 300
_MOST_DAYS: Final = 10
_LONGEST: Final = 950
"""Longest summary in characters: a note of Airflow has at most 1000."""


def summary(report: Mapping[str, Any]) -> str:
    """Return a summary of the report of `headrace backfill --report`: the outcome, and the number of differing rows by table."""
    lines = [_headline(report)]
    differences = report.get("differences")
    if differences is not None:
        rows = sorted(_rows(differences), key=lambda row: not row[0].endswith("(sink)"))
        lines += _days(differences)
        lines += _table(rows, sum(map(len, lines))) if rows else ["", "Nothing differs."]
        if report["outcome"] != "promoted":
            lines += ["", f"Rows: `headrace branch diff {report['job']} {report['name']}`"]
    return "\n".join(lines)


def plan_text(report: Mapping[str, Any]) -> str:
    """Return the plan of a backfill as a Markdown table: what `headrace backfill --dry-run` shows. Empty without a plan.

    How the command itself would end is left out: in Airflow a person answers instead.
    """
    shown = (line for line in report.get("plan", ()) if line["label"] != _OF_THE_COMMAND)
    lines = [f"| {line['label']} | {line['text']} |" for line in shown]
    return "\n".join(["| plan | |", "|---|---|", *lines]) if lines else ""


def rows_text(report: Mapping[str, Any], most: int) -> str:
    """Return the first changed rows of sinks as a Markdown table, `most` of them; empty if there are none."""
    differences = report.get("differences") or {"tables": ()}
    rows = (
        (table["table"], row["change"], _named(row["name"]), _change(row))
        for table in differences["tables"]
        if table["is_sink"]
        for row in table["rows"]
    )
    lines = [f"| {' | '.join(_plain(str(cell)) for cell in row)} |" for row in islice(rows, most)]
    return "\n".join(["| sink | row | key | live -> branch |", "|---|---|---|---|", *lines]) if lines else ""


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _change(row: Mapping[str, Any]) -> str:
    """Return what differs in a row: its fields before and after, or the whole row if one side has none."""
    before, after = row["before"], row["after"]
    if before is None or after is None:
        return _named(after or before or {})
    differing = [name for name in after if before.get(name) != after[name]]
    return ", ".join(f"{name}: {before.get(name)} -> {after[name]}" for name in differing)


_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>#|~!&]")


def _plain(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, on one line, cut if it is long."""
    cut = text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}..."
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", " ".join(cut.split()))


def _headline(report: Mapping[str, Any]) -> str:
    if "from" not in report:
        return f"No backfill is open on branch `{report['name']}` of job `{report['job']}`: it was promoted or dropped already."
    waiting = (
        f" **{counted(report['waiting'], 'element waits', 'elements wait')} for services.**"
        if report["outcome"] == "waiting"
        else ""
    )
    return (
        f"Job `{report['job']}`, {day_text(report['from'])} to {day_text(report['to'])} and all later, on branch `{report['name']}`, which begins at "
        f"checkpoint {report['fork_id']}: {report['outcome'].replace('_', ' ')}.{waiting}"
    )


def day_text(timestamp: str) -> str:
    """Return a timestamp of a report without its time of day if that is midnight (UTC)."""
    return timestamp.removesuffix("T00:00:00Z")


def _days(differences: Mapping[str, Any]) -> list[str]:
    """Return a line on the days whose rows differ in a sink, if they are known."""
    intervals = {tuple(interval) for table in differences["tables"] for interval in table.get("intervals", ())}
    if not intervals:
        return []
    named = [day_text(start) for start, _ in sorted(intervals)]
    more = f" and {len(named) - _MOST_DAYS} more" if len(named) > _MOST_DAYS else ""
    return ["", f"Days whose rows differ in sinks: {', '.join(named[:_MOST_DAYS])}{more}."]


def _rows(differences: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for table in differences["tables"]:
        for counts in table["counts"]:
            place = f"{table['table']} (sink)" if table["is_sink"] else table["table"]
            group = " ".join(counts[name] for name in ("operator", "state") if counts.get(name))
            yield (place, group, *(f"{counts.get(change, 0):,}" for change in _CHANGES))


def _table(rows: list[tuple[str, ...]], used: int) -> list[str]:
    """Return the table, with as many rows as fit."""
    lines = ["", f"| table | state of | {' | '.join(_CHANGES)} |", "|---|---|--:|--:|--:|--:|"]
    left = _LONGEST - used - sum(map(len, lines)) - 100
    for number, row in enumerate(rows):
        line = f"| {' | '.join(row)} |"
        left -= len(line) + 1
        if left < 0:
            return [*lines, "", f"and {len(rows) - number} more"]
        lines.append(line)
    return lines
