"""Application of the command line: errors, option values, standard streams, commands and exit codes.

A reader of the output that goes away, or a full disk, ends no command half-way.
"""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import re
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

import typer
from typer import core
from typer.core import TyperGroup

from headrace import logs
from headrace.cli.arguments import IN_JSON, REPORT_FILE, in_utf8, shared_options, warn
from headrace.cli.proposal import Proposal
from headrace.errors import ConfigError, EngineBug, HeadraceError, IntervalError, OpenIntervalError, StorageError
from headrace.interrupts import watch
from headrace.report import Report, Time
from headrace.threads import KEPT

_log = logging.getLogger(__name__)
_INTERRUPTED = 130


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of the error's class; 70 for errors of other packages, 130 for Ctrl-C."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, HeadraceError):
        return error.exit_code
    return int(getattr(error, "exit_code", EngineBug.exit_code))


def _report(error: BaseException, *, to_machines: bool, starts: bool = False) -> None:
    """Show `error`: JSON on stdout, a panel on a terminal's stderr, plain text on any other stderr, an object there with JSON lines.

    `starts`: the command starts work, so the message says whether it has.
    """
    name, message = _told(error, starts=starts)
    message = in_utf8(message)
    if to_machines:
        import msgspec

        print(msgspec.json.encode({"error": name, "message": message}).decode())
    if logs.in_json():
        fields = {"error": name, "exit_code": exit_code_of(error)}
        traced = error if _is_unforeseen(error) else None
        logs.write(_log, message, level=logging.ERROR, kind="error", fields=fields, error=traced)
        return
    if _is_unforeseen(error):
        traceback.print_exception(error, file=sys.stderr)
    if not to_machines:
        _show(name, message)


def _told(error: BaseException, *, starts: bool) -> tuple[str, str]:
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted", "interrupted. What was committed stays; the next run goes on from there."
    if isinstance(error, HeadraceError):
        return type(error).__name__, error.text_of_start if starts else str(error)
    if hasattr(error, "format_message"):
        return "ConfigError", error.format_message()
    message = f"unexpected {type(error).__name__}: {error}\nPlease report it with the traceback on stderr."
    return EngineBug.__name__, message


def _is_unforeseen(error: BaseException) -> bool:
    ours = isinstance(error, HeadraceError | KeyboardInterrupt) or hasattr(error, "format_message")
    return not ours or isinstance(error, EngineBug)


def _show(name: str, message: str) -> None:
    if not sys.stderr.isatty():
        logs.write(_log, message, level=logging.ERROR, kind=name)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console(stderr=True).print(Panel(Text(message), title=name, title_align="left", border_style="red"))


_PLAIN = (str, int, bool)


def keep_given_values() -> None:
    """Make Typer convert a value only if it has another type than its parameter declares, in this process.

    Typer asks pydantic about all values, also about options that are left out. The import of pydantic alone takes 0.1 s of
    CPU, as long as `headrace --help`. Does nothing with releases of Typer that convert values in other ways.
    """
    parameter: Any = getattr(core, "_TyperParameter", None)
    if parameter is None or not hasattr(parameter, "get_runtime_param"):
        return
    converter_of = parameter.get_runtime_param
    if converter_of.__module__ != __name__:
        parameter.get_runtime_param = lambda parameter: _GivenValues(lambda: converter_of(parameter))


class _GivenValues:
    """Converter of a parameter that asks Typer's own one only if there is something to convert."""

    def __init__(self, converter: Callable[[], Any]) -> None:
        self._converter = converter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; called by Typer for each parameter of a command."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        declared = param.type_descriptor
        if (
            declared.annotation in _PLAIN
            and type(value) is declared.annotation
            and declared.parameter_info.parser is None
        ):
            return value
        return self._converter().coerce(value, param=param, ctx=ctx)


class _LastingFile(io.FileIO):
    """File descriptor that drops what can no longer be written, and keeps the first error that is no closed pipe."""

    refusal: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write bytes; pretend to, if the reader of a pipe has gone or the storage refuses."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:  # `headrace ... | head`
            return memoryview(data).nbytes
        except OSError as error:
            self.refusal = self.refusal or error
            return memoryview(data).nbytes


class Streams:
    """Standard output and error while a command runs."""

    def __init__(self, files: list[_LastingFile]) -> None:
        """Store the files below both streams."""
        self._files = files

    def exit_code(self, code: str | int | None) -> str | int | None:
        """Return the command's own exit code; that of a `StorageError`, with a note, if only its output was lost."""
        _flush()
        refusals = [file.refusal for file in self._files if file.refusal is not None]
        if not refusals or code:
            return code
        note = (
            f"the output could not be written: {refusals[0].strerror}. The command itself is done; what it did stays."
        )
        logs.write(_log, note, level=logging.ERROR)
        return StorageError.exit_code


@contextmanager
def open_streams() -> Iterator[Streams]:
    """Replace standard output and error by streams that outlast their readers; by the null device, if a shell has closed them."""
    before = {name: getattr(sys, name) for name in _NAMES}
    files = []
    for name, stream in before.items():
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the whole process
            continue
        stream.flush()
        files.append(_LastingFile(stream.fileno(), "w", closefd=False))
        setattr(sys, name, _text(files[-1], stream))
    try:
        yield Streams(files)
    finally:
        _flush()
        for name, stream in before.items():
            if stream is not None:
                setattr(sys, name, stream)


_NAMES: Final = ("stdout", "stderr")


def _flush() -> None:
    for name in _NAMES:
        getattr(sys, name).flush()


def _text(file: _LastingFile, like: TextIO) -> TextIO:
    """Return a text stream over a file, with the encoding and buffering of another one."""
    lines = bool(like.line_buffering) or os.isatty(like.fileno())
    return io.TextIOWrapper(io.BufferedWriter(file), like.encoding, like.errors, line_buffering=lines)


HELP = """Run, inspect and rewind stateful pipelines whose state lives in Delta tables.

JOB is a file in conf/jobs/; leave it out if there is only one. `--json` prints one JSON
document on stdout; messages always go to stderr.

Commands that run, read or maintain one job take --branch NAME to work on a branch of it ('headrace branch').

Something is wrong?  headrace doctor,  headrace check JOB,  headrace status,  headrace reconcile JOB

Exit codes: 0 done; 1 a check failed; 2 fix the configuration or the command; 3 another run holds the
job; 4 a service is down; 5 user code raised; 6 stored state does not fit the code; 7 an input cannot
be read; 8 storage refused; 9 an interval would leave a gap or go back; 10 the job and a sink disagree
on what was published; 12 rows conflict over a primary key; 13 Spark
died or did not start: run again; 14 only Spark can do it; 15 a backfill is beyond a limit of the job's
file; 70 a bug in Headrace; 130 interrupted.
"""


_STARTING = {"run", "backfill", "restore"}
"""Commands whose errors say whether anything was started."""

_COMMANDS = {
    "project.register_new": ["new"],
    "project.register_setup": ["setup"],
    "run.register": ["run"],
    "run_report.register": ["run-report"],
    "check.register": ["check", "verify"],
    "jobs.register": ["jobs", "explain"],
    "lineage.register": ["lineage"],
    "status.register": ["status", "checkpoints"],
    "alerts.register": ["alerts"],
    "top.register": ["top"],
    "report.register": ["report"],
    "state.reads.register_state": ["state"],
    "sink.register": ["sink"],
    "state.histories.register_history": ["history"],
    "retract.register": ["history retract"],
    "why.register": ["why"],
    "diff.register": ["diff"],
    "branch.register": ["branch"],
    "backfill.register": ["backfill"],
    "backfill_dag.register": ["backfill-dag"],
    "lists.register_reads": ["sql", "views"],
    "lists.register_waiting": ["waiting"],
    "lists.register_quarantine": ["quarantine"],
    "input.register": ["input"],
    "restore.register_restore": ["savepoint", "restore"],
    "maintain.register": ["maintain"],
    "corrections.register_calls": ["calls"],
    "restore.register_reconcile": ["reconcile"],
    "state_edits.register_rescale": ["rescale"],
    "erase.register_erase": ["erase"],
    "doctor.register": ["doctor"],
    "erase.register_drop": ["drop"],
}
"""Functions that add commands, with the names of the commands, in the order of `--help`."""

_OLD_NAMES = {
    "retries": ("waiting", "--calls"),
    "requests": ("waiting", "--held"),
    "timers": ("waiting", "--timers"),
    "compact": ("maintain", "--state"),
    "vacuum": ("maintain", "--files"),
}
"""Names that commands had before 0.2: the command and the option that do the same. They stay for one release, and `--help` hides them."""

_WITHOUT_TABLES = {"new", "setup", "jobs", "doctor", "backfill-dag"}
"""Commands that read no tables, or that have to work where pyarrow is missing."""

_OF_SCHEDULERS = {"run", "backfill"}
"""Commands that write their results to --report, too. Their callers show an error in it."""

_COLLECT_AFTER = 50_000
"""Objects that a command makes before Python looks for garbage. Its default of 700 costs a tenth of a short command's time."""


class _Commands(TyperGroup):
    """Typer's group with an exit code for every exception."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add the options that all commands share, and keep pandas out of commands that read tables."""
        super().__init__(*args, **kwargs)
        shared = _shared_options()
        for path, command in _paths("", self.commands):
            if path not in _WITHOUT_TABLES:
                command.callback = partial(_call_without_pandas, command.callback)
            command.params += shared

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name, an old one, or two words: `history retract` beside `history JOB`."""
        words = renamed(args)
        if words != args:
            warn(f"headrace {args[0]} is now: {shlex.join(['headrace', *words])}")
            args = words
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report its error, and exit with the code of the error's class."""
        with logs.on_stderr():
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        to_machines = "--json" in [*ctx._protected_args, *ctx.args]  # noqa: SLF001 - typer has no public name for them
        try:
            _check_format_of_lines()
            result = super().invoke(ctx)
            if isinstance(result, Proposal):
                result = result.answered(ctx)
            if isinstance(result, Report):
                _end_with(result, ctx)
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            _add_hint(error)
            starts = ctx.invoked_subcommand in _STARTING
            is_reported = _is_reported(error, ctx, starts=starts)
            if logs.in_json() or not is_reported:
                if _is_typers_own(error) and not to_machines and not logs.in_json():
                    raise
                _report(error, to_machines=to_machines and not is_reported, starts=starts)
            raise typer.Exit(exit_code_of(error)) from error


def _check_format_of_lines() -> None:
    try:
        logs.check_format()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _call_without_pandas(command: Callable[..., Any], **arguments: Any) -> Any:
    from headrace.storage.pandas import without_pandas

    without_pandas()
    return command(**arguments)


def _paths(before: str, commands: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the commands with their names, as `state list`."""
    for name, command in commands.items():
        if isinstance(command, TyperGroup):
            yield from _paths(f"{before}{name} ", command.commands)
        else:
            yield f"{before}{name}", command


def _is_reported(error: BaseException, ctx: Any, *, starts: bool) -> bool:
    """Write an error to the file of --report, if the command was given one; return whether its caller shows the error.

    An unexpected error is shown with its traceback in any case, and every error is shown if the file cannot be written.
    """
    if (file := ctx.meta.get(REPORT_FILE)) is None:
        return False
    from headrace.cli.output import write_document

    name, message = _told(error, starts=starts)
    content: dict[str, Any] = {"error": name, "message": in_utf8(message), "exit_code": exit_code_of(error)}
    if isinstance(error, IntervalError) and error.is_taken_in:
        content |= {"is_taken_in": True, "changes": list(error.changes)}
    if isinstance(error, IntervalError) and error.leaves_gap:
        content |= {"leaves_gap": True}
    if isinstance(error, OpenIntervalError) and error.open_until is not None:
        content |= {"open_until": Time(error.open_until).utc}
    is_written = write_document(file, content)
    is_expected = isinstance(error, HeadraceError) and not isinstance(error, EngineBug)
    return is_written and is_expected and ctx.invoked_subcommand in _OF_SCHEDULERS


def _end_with(report: Report, ctx: Any) -> None:
    """Print the report of a command, write it for a scheduler, and end with its error or exit code."""
    from headrace.cli.output import plain_report, print_document, print_text, write_document

    file, in_json = ctx.meta.get(REPORT_FILE), ctx.meta.get(IN_JSON)
    if file is not None and ctx.invoked_subcommand in _OF_SCHEDULERS:
        write_document(file, plain_report(report))
    if not in_json:
        print_text(report)
    elif report.error is None:
        print_document(report)
    if report.error is not None:
        raise report.error
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _shared_options() -> list[Any]:
    """Return the options that all commands share. Their values stay in the context: no command has to hand them on."""
    app = typer.Typer(add_completion=False)
    app.command()(shared_options)
    in_json, report_file = options = typer.main.get_command(app).params[:2]
    in_json.callback, report_file.callback = partial(_keep, IN_JSON), partial(_keep, REPORT_FILE)
    in_json.expose_value = report_file.expose_value = False
    return options


def _keep(name: str, ctx: Any, _: Any, value: Any) -> Any:
    """Keep the value of a shared option."""
    ctx.meta[name] = value
    return value


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
    own = [
        function for function, commands in _COMMANDS.items() if any(_begins_with(arguments, name) for name in commands)
    ]
    for function in own or _COMMANDS:
        module, _, name = function.rpartition(".")
        getattr(import_module(f"headrace.cli.{module}"), name)(app)
    return app


def renamed(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the new name of its command, and the option that makes it do the same."""
    if not arguments or arguments[0] not in _OLD_NAMES:
        return [*arguments]
    old, *rest = arguments
    command, option = _OLD_NAMES[old]
    options = [] if old == "compact" and "--sinks" in rest else [option]
    at = 1 if rest and not rest[0].startswith("-") else 0  # the job first, as people write it
    return [command, *rest[:at], *options, *rest[at:]]


def _begins_with(arguments: Sequence[str], command: str) -> bool:
    words = command.split()
    return [*arguments[: len(words)]] == words


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
    with open_streams() as streams, logs.on_stderr():
        try:
            application(sys.argv[1:])(prog_name="headrace")
        except SystemExit as end:
            ended = SystemExit(streams.exit_code(end.code))
            _end_with_threads(ended)
            raise ended from end


def _end_with_threads(end: SystemExit) -> None:
    """End the process at once if user code has left threads running: Python would wait for them, without a word and without an end.

    Threads of the engine have ended by now, are daemons, or end with the process.
    """
    left = [
        thread.name
        for thread in threading.enumerate()
        if not (thread.daemon or thread is threading.main_thread() or thread.name.startswith(KEPT))
    ]
    if not left:
        return
    message = f"user code has left threads running ({', '.join(left)}); the process ends without them"
    logs.write(_log, message, level=logging.WARNING)
    atexit._run_exitfuncs()  # noqa: SLF001 - Spark ends its JVM there
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
