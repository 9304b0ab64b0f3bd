"""What commands share that change a job for good: a dry run unless `--apply` is given, and a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Optional

import typer

Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without: a dry run, which changes nothing.")]
ApplyWhy = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--why", help="With --apply: the reason, kept with what is done."),
]
NOT_CHANGED = "Nothing was changed. --apply does it."


def reason(why: str | None) -> str:
    """Return the reason for a change. Raises `ConfigError` when none is given."""
    from headrace.errors import ConfigError

    if not why:
        msg = 'this needs a reason, which is kept with what is done: add --why "...". Nothing was changed.'
        raise ConfigError(msg)
    return why


def show_rows(rows: Mapping[str, int], what: str) -> None:
    """Print how many rows there are of what, table by table."""
    from headrace.cli._output import show, table

    if rows:
        show(table(("table", what), list(rows.items())))
