"""Application of the command line: registers all commands, and turns errors into exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from headrace.cli._arguments import BRANCH, Branch
from headrace.cli._errors import exit_code_of, report
from headrace.cli._given_values import keep_given_values
from headrace.cli._streams import open_streams
from headrace.interrupts import watch

HELP = """Run, inspect and rewind stateful pipelines whose state lives in Delta tables.

JOB is a file in conf/jobs/; leave it out if there is only one. `--json` prints one JSON
document on stdout; messages always go to stderr.

Commands that run, read or maintain one job take --branch NAME to work on a branch of it ('headrace branch').

Something is wrong?  headrace doctor,  headrace check JOB,  headrace status,  headrace reconcile JOB

Exit codes: 0 done; 1 a check failed; 2 fix the configuration or the command; 3 another run holds the
job; 4 a service is down; 5 user code raised; 6 stored state does not fit the code; 7 an input cannot
be read; 8 storage refused; 9 an interval would leave a gap or go back; 10 the job and a sink disagree
on what was published; 12 rows conflict over a primary key; 13 Spark
died or did not start: run again; 70 a bug in Headrace; 130 interrupted.
"""


_ON_BRANCHES = {
    "run", "verify", "checkpoints", "history", "diff", "timers", "sql", "views", "retries", "requests", "quarantine", "savepoint", "restore",
    "vacuum", "compact", "state list", "state get", "state scan", "state history", "state expired",
}  # fmt: skip
"""Commands that take --branch."""

_COMMANDS = {
    "_new": ["new"],
    "_setup": ["setup"],
    "_run": ["run"],
    "_check": ["check", "verify"],
    "_jobs": ["jobs", "explain"],
    "_status": ["status", "checkpoints"],
    "_state": ["state"],
    "_sink": ["sink"],
    "_history": ["history"],
    "_diff": ["diff"],
    "_branch": ["branch"],
    "_backfill": ["backfill"],
    "_read": ["timers", "sql", "views"],
    "_waiting": ["retries", "requests"],
    "_quarantine": ["quarantine"],
    "_input": ["input"],
    "_change": ["savepoint", "restore", "vacuum"],
    "_compact": ["compact"],
    "_reconcile": ["reconcile"],
    "_rescale": ["rescale"],
    "_erase": ["erase"],
    "_doctor": ["doctor"],
    "_drop": ["drop"],
}
"""Modules with the names of their commands, in the order of `--help`."""

_COLLECT_AFTER = 50_000
"""Objects that a command makes before Python looks for garbage. Its default of 700 costs a tenth of a short command's time."""


class _Commands(TyperGroup):
    """Typer's group with an exit code for every exception."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add --branch to the commands that work on branches."""
        super().__init__(*args, **kwargs)
        option = _branch_option()
        for path, command in _paths("", self.commands):
            if path in _ON_BRANCHES:
                command.params.append(option)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Reset the branch: one process may run several commands."""
        BRANCH.set(None)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report its error, and exit with the code of the error's class."""
        as_json = "--json" in [*ctx._protected_args, *ctx.args]  # noqa: SLF001 - typer has no public name for them
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            _add_hint(error)
            if _is_typers_own(error) and not as_json:
                raise
            report(error, as_json=as_json)
            raise typer.Exit(exit_code_of(error)) from error


def _paths(before: str, commands: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the commands with their names, as `state list`."""
    for name, command in commands.items():
        if isinstance(command, TyperGroup):
            yield from _paths(f"{before}{name} ", command.commands)
        else:
            yield f"{before}{name}", command


def _branch_option() -> Any:
    """Return the option --branch, whose value is kept for `load`. Typer makes options only from functions."""
    app = typer.Typer(add_completion=False)
    app.command()(_with_branch)
    return typer.main.get_command(app).params[0]


def _with_branch(branch: Branch = None) -> None:
    """Declare the option."""


def _is_typers_own(error: BaseException) -> bool:
    """Return whether Typer raised the error for a wrong option or argument: it reports these itself, and exits with 2."""
    return hasattr(error, "format_message")


def _add_hint(error: BaseException) -> None:
    """Add to Typer's error for an unknown option how to write a key that begins with a minus."""
    name = str(getattr(error, "option_name", ""))
    if _is_typers_own(error) and _NUMBER.fullmatch(name):
        vars(error)["message"] = f"{error}. If {name} is a key, write -- before it: -- {name}"


_NUMBER = re.compile(r"-[\d.]\S*")


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the application that runs a command line; with all commands if it begins with none of them.

    Typer reads the signatures of all functions that it is given, and each module is a file to read: a command's own
    module alone saves a fifth of the time until the command begins.
    """
    app = typer.Typer(
        name="headrace",
        cls=_Commands,
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": 100},
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    own = [module for module, commands in _COMMANDS.items() if arguments and arguments[0] in commands]
    for module in own or _COMMANDS:
        import_module(f"headrace.cli.{module}").register(app)
    return app


def _root(
    *, version: bool = typer.Option(False, "--version", help="Print the version and end.", is_eager=True)
) -> None:
    if version:
        from headrace import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command of this process, and exit with its code."""
    gc.set_threshold(_COLLECT_AFTER)
    watch()
    keep_given_values()
    with open_streams() as streams:
        try:
            application(sys.argv[1:])(prog_name="headrace")
        except SystemExit as end:
            ended = SystemExit(streams.exit_code(end.code))
            _end_with_threads(ended)
            raise ended from end


def _end_with_threads(end: SystemExit) -> None:
    """End the process at once if user code has left threads running: Python would wait for them, without a word and without an end.

    Threads of the engine have ended by now, or are daemons.
    """
    left = [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    if not left:
        return
    print(f"user code has left threads running ({', '.join(left)}); the process ends without them", file=sys.stderr)
    atexit._run_exitfuncs()  # noqa: SLF001 - Spark ends its JVM there
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
