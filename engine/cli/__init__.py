"""The `headrace` command. Importing it loads Typer and nothing heavier; each command imports its own."""

from engine.cli._app import app, main

__all__ = ["app", "main"]
