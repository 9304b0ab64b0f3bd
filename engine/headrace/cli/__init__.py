"""The `headrace` command. Importing it loads Typer and nothing heavier; each command imports its own."""

from headrace.cli._app import app, main

__all__ = ["app", "main"]
