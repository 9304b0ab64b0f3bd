"""Output of errors: one message for people, or one JSON object for machines."""

from __future__ import annotations

import sys
import traceback

from headrace.errors import EngineBug, HeadraceError

_INTERRUPTED = 130


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of the error's class; 70 for errors of other packages, 130 for Ctrl-C."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, HeadraceError):
        return error.exit_code
    return int(getattr(error, "exit_code", EngineBug.exit_code))


def report(error: BaseException, *, as_json: bool) -> None:
    """Show `error`: JSON on stdout, a panel on a terminal's stderr, plain text on any other stderr."""
    name, message = _told(error)
    message = message.encode(errors="backslashreplace").decode()  # an argument that is no UTF-8 is quoted in errors
    if as_json:
        import msgspec

        print(msgspec.json.encode({"error": name, "message": message}).decode())
    if _is_unforeseen(error):
        traceback.print_exception(error, file=sys.stderr)
    if not as_json:
        _show(name, message)


def _told(error: BaseException) -> tuple[str, str]:
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted", "interrupted. What was committed stays; the next run goes on from there."
    if isinstance(error, HeadraceError):
        return type(error).__name__, str(error)
    if hasattr(error, "format_message"):
        return "ConfigError", error.format_message()
    message = f"unexpected {type(error).__name__}: {error}\nPlease report it with the traceback on stderr."
    return EngineBug.__name__, message


def _is_unforeseen(error: BaseException) -> bool:
    ours = isinstance(error, HeadraceError | KeyboardInterrupt) or hasattr(error, "format_message")
    return not ours or isinstance(error, EngineBug)


def _show(name: str, message: str) -> None:
    if not sys.stderr.isatty():
        print(f"{name}: {message}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console(stderr=True).print(Panel(Text(message), title=name, title_align="left", border_style="red"))
