"""Command line `headrace`. Importing it loads Typer and nothing heavier; each command imports its own modules."""

from headrace.cli._app import app, main

__all__ = ["app", "main"]
