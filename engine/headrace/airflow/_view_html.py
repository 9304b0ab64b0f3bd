"""HTML of the view beside the pages of `headrace report`: the list of jobs, and a page of one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any, Final
from urllib.parse import quote

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of each answer: a page has no script, asks for nothing, and is shown in Airflow's own pages alone."""

_STYLE: Final = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--rule:#d0d7de;--link:#0b57a4;--bad:#a11}
@media(prefers-color-scheme:dark){:root{--back:#14181d;--text:#e6e9ed;--soft:#a5afba;--rule:#39424d;--link:#7fb8f0;--bad:#ff8c82}}
body{margin:0 auto;max-width:75rem;padding:1rem;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;margin:0 0 .5rem}p{max-width:45rem;overflow-wrap:anywhere}a{color:var(--link)}
.rows{overflow-x:auto}table{border-collapse:collapse;width:100%}caption{text-align:left;color:var(--soft)}
th,td{padding:.3rem 1.2rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.time{white-space:nowrap}
.problem{color:var(--bad);white-space:nowrap}.long{white-space:normal;min-width:18rem;overflow-wrap:anywhere}
"""
_COLUMNS: Final = {
    "job": "Job",
    "problem": "Health",
    "hours_behind": "Hours behind",
    "checkpoint": "Checkpoint",
    "committed_at": "Committed (UTC)",
    "waiting": "Waiting",
    "set_aside": "Set aside",
}
_NUMBERS: Final = {"hours_behind", "waiting", "set_aside"}
_RIGHT: Final = {*_NUMBERS, "checkpoint"}
_LONGEST: Final = 300
_LONGEST_WORDS: Final = 30
"""Of a cell that need not be wide."""
_TO_THE_SECOND: Final = len("2013-01-31T05:00:00")


def line(text: str) -> str:
    """Return a page that says one thing."""
    return _document("Headrace", f"<p>{escape(text)}</p>")


def jobs(rows: Iterable[Mapping[str, Any]], at: float) -> str:
    """Return the page of all jobs as they were at a time (ms), in the order of `rows`. Each leads to its own page, by a relative link."""
    head = "".join(f'<th scope="col"{_kind(key)}>{title}</th>' for key, title in _COLUMNS.items())
    body = "".join(f"<tr>{''.join(_cell(key, row) for key in _COLUMNS)}</tr>" for row in rows)
    caption = f"<caption>The worst first, as of {datetime.fromtimestamp(at / 1000, UTC):%H:%M:%S} UTC</caption>"
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    label = 'tabindex="0" role="region" aria-label="All jobs"'
    return _document("Jobs of Headrace", f'<h1>Jobs of Headrace</h1><div class="rows" {label}>{table}</div>')


def _kind(key: str, value: object = None) -> str:
    """Return the class of a cell."""
    problem = f"problem{' long' if len(str(value)) > _LONGEST_WORDS else ''}" if value else ""
    kind = "number" if key in _RIGHT else {"problem": problem, "committed_at": "time"}.get(key, "")
    return f' class="{kind}"' if kind else ""


def _cell(key: str, row: Mapping[str, Any]) -> str:
    value = row.get(key)
    text = _text(key, value)
    if key == "job":
        text = f'<a href="dags/{quote(str(value), safe="")}">{text}</a>'
    return f"<td{_kind(key, value)}>{text}</td>"


def _text(key: str, value: object) -> str:
    """Return the escaped text of a cell."""
    if value is None:
        return "ok" if key == "problem" else ""
    text = f"{value:,}" if isinstance(value, int | float) and key in _NUMBERS else str(value)
    if key == "committed_at":
        text = text[:_TO_THE_SECOND].replace("T", " ")
    return escape(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


def _document(title: str, body: str) -> str:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>{body}</main></body></html>'
