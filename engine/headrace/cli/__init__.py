"""Command line `headrace`. Importing it loads Typer and nothing heavier; each command imports its own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.application import application, main

if TYPE_CHECKING:
    import typer

    app: typer.Typer

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Make `app`, the application with all commands, at its first use: `main` builds only the command that it runs."""
    if name != "app":
        msg = f"module 'headrace.cli' has no attribute '{name}'"
        raise AttributeError(msg)
    globals()[name] = application()
    return globals()[name]
