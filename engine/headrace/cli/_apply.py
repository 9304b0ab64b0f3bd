"""Options of commands that change a job for good: a dry run unless `--apply` is given, and a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Optional

import typer

Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without it: a dry run, which changes nothing.")]
ApplyWhy = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--why", help="With --apply: the reason, recorded with the change."),
]
NOT_CHANGED = "Nothing was changed. --apply does it."


def reason(why: str | None) -> str:
    """Return the reason for a change. Raises `ConfigError` when none is given."""
    from headrace.errors import ConfigError

    if not why:
        msg = 'this needs a reason, which is recorded with the change: add --why "...". Nothing was changed.'
        raise ConfigError(msg)
    return why


def show_rows(rows: Mapping[str, int], what: str) -> None:
    """Print the numbers of rows by table; `what` names the rows."""
    from headrace.cli._output import show, table

    if rows:
        show(table(("table", what), list(rows.items())))
