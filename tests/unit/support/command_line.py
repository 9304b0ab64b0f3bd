"""The command line in this process."""

from __future__ import annotations

from functools import cache

import typer.main
import typer.testing

whole_command = cache(typer.main.get_command)
"""Function that returns an application as Click has it. It keeps each, since one takes a third of a second to make."""


def make_applications_once():
    """Let Typer's runners make each application once, not at each call: hundreds of tests call a command."""
    typer.testing._get_command = whole_command  # type: ignore[attr-defined]
