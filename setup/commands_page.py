"""Write docs/reference/commands.md: all commands of `headrace` with their arguments and options, from their help."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import generated_page  # type: ignore[import-not-found]  # a script's neighbour
import typer.main

from headrace.cli import app

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"

HEAD: Final = """# Commands

Made from `headrace COMMAND --help` by `make reference`; do not edit. [The `headrace` command](../cli.md) says which command answers which question, shows
outputs, and has the old names; [errors](../errors.md) has the exit codes.
"""
STATE: Final = "[correcting state](../correcting-state.md)"
BRANCHES: Final = "[branches](../branches.md)"
MORE: Final[Mapping[str, str]] = {
    "new": "[quickstart](../quickstart.md#in-your-own-repository), [a job from your data](../sources.md#a-job-from-your-data)",
    "setup": "[topics of Kafka](../kafka.md), [a sooner start of Spark](../compatibility.md#what-starts-spark-sooner)",
    "run": "[without a JVM](../running-on-a-cluster.md#without-a-jvm), [`--finish`](../async-io.md#finishing), "
    "[`--end-of-input`](../several-sources.md#the-end-of-the-input), [`--lineage`](../lineage.md#openlineage)",
    "run-report": "[a driver elsewhere](../airflow.md#a-driver-elsewhere)",
    "verify": "[what it looks at](../errors.md#what-verify-looks-at)",
    "jobs": "[configuration](../configuration.md)",
    "explain": "[all methods of a pipeline](../pipeline.md)",
    "lineage": "[lineage of columns](../lineage.md)",
    "checkpoints": "[looking back](../cli.md#looking-back)",
    "alerts": "[alerts](../alerts.md)",
    "report": "[report](../report.md)",
    "history": "[the materializer](../materializer.md), [`apply_changes`](../apply-changes.md#what-is-stored)",
    "history retract": "[a row of a history](../correcting-state.md#a-row-of-a-history)",
    "why": "[what is stored, and why](../correcting-state.md#what-is-stored-and-why)",
    "diff": "[comparing two checkpoints](../cli.md#comparing-two-checkpoints)",
    "backfill": "[backfill](../backfill.md), [jobs downstream](../backfill.md#jobs-downstream)",
    "backfill-dag": "[backfills in Airflow](../airflow.md#from-a-terminal)",
    "sql": "[state tables](../state-tables.md)",
    "views": "[asking with anything else](../state-tables.md#asking-with-anything-else)",
    "waiting": "[async I/O](../async-io.md)",
    "quarantine": "[taking rows in again](../errors.md#taking-rows-in-again)",
    "input": "[changed files](../sources.md#changed-files)",
    "restore": "[how far back](../state-tables.md#how-far-back)",
    "maintain": "[small files of sinks](../sinks.md#small-files), [how far back](../state-tables.md#how-far-back)",
    "reconcile": "[`SinkMismatchError`](../errors.md#10-sinkmismatcherror)",
    "rescale": "[another `max_parallelism`](../changing-jobs.md#another-max_parallelism)",
    "erase": "[erasure](../erasure.md)",
    "drop": "[remove a job](../changing-jobs.md#remove-a-job)",
    "state set": STATE,
    "state delete": STATE,
    "state expire": STATE,
    "state load": "[a state from a table](../correcting-state.md#a-state-from-a-table)",
    "state set-timer": "[timers](../correcting-state.md#timers)",
    "state delete-timer": "[timers](../correcting-state.md#timers)",
    "state drop": "[remove an operator](../changing-jobs.md#remove-an-operator)",
    "state rename": "[rename an operator](../changing-jobs.md#rename-an-operator)",
    "state expired": "[time to live](../ttl.md)",
    "sink take-over": "[whose table it is](../sinks.md#whose-table-it-is)",
    "calls drop": "[calls](../correcting-state.md#calls)",
    "calls retry-now": "[calls](../correcting-state.md#calls)",
    **dict.fromkeys(("branch create", "branch list", "branch diff", "branch promote", "branch drop"), BRANCHES),
}
"""Pages that say more about a command than its help."""

_EXAMPLE: Final = re.compile(r"^(?:Example|For [a-z]+):  (.+)$", re.MULTILINE)
_CODE: Final = re.compile(r"(`[^`]*`)")
_COMMAND: Final = re.compile(r"'(headrace [^']+)'")
_OPTION: Final = re.compile(r"(?<![\w-])(--[a-z][a-z-]*(?: [A-Z]{2,})?|-n\b)")

Commands = Mapping[str, Any]
"""Typer's commands, by their names, as `state list`."""


def _named(commands: Commands, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        yield from _named(inner, f"{before}{name} ") if inner else [(f"{before}{name}", command)]


def _markdown(text: str) -> str:
    """Return a text of the help as one line, with commands and options as code."""
    parts = _CODE.split(_COMMAND.sub(r"`\1`", " ".join(text.split())))
    parts[::2] = [_OPTION.sub(r"`\1`", re.sub(r"([*<]|\b_)", r"\\\1", part)) for part in parts[::2]]
    return "".join(parts)


def _option(parameter: Any) -> str:
    """Return names and value of an option, as `--limit N`, or the name of an argument.

    Raises:
        LookupError: it has no word for its value.
    """
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar.strip('[]')}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    if not parameter.is_flag:
        if parameter.metavar is None:
            raise LookupError(f"{names[0]} has no metavar")
        *others, last = parameter.metavar.split("|")
        names[0] += f" {', '.join(others)} or {last}" if others else f" {last}"
    return ", ".join(f"`{name}`" for name in names)


def _meaning(parameter: Any) -> str:
    default = getattr(parameter, "default", None)
    has_default = parameter.param_type_name == "option" and not parameter.is_flag and isinstance(default, int | str)
    notes = [
        "Required." if parameter.required and parameter.param_type_name == "option" else "",
        f"Default: `{default}`." if has_default else "",
    ]
    return " ".join(filter(None, (_markdown(parameter.help or ""), *notes)))


def _table(parameters: list[Any]) -> str:
    rows = (f"| {_option(parameter)} | {_meaning(parameter)} |\n" for parameter in parameters)
    return f"| argument | meaning |\n|---|---|\n{''.join(rows)}"


def _anchor(name: str) -> str:
    return f"headrace-{name}".replace(" ", "-")


def _section(name: str, command: Any, shared: set[str]) -> str:
    paragraphs = command.help.split("\n\n")
    examples = "\n".join(_EXAMPLE.findall(command.help))
    texts = [_markdown(part) for part in paragraphs if not _EXAMPLE.match(part)]
    own = [part for part in command.params if part.name not in shared and not getattr(part, "hidden", False)]
    more = f"\nMore: {MORE[name]}.\n" if name in MORE else ""
    return (
        f"\n## `headrace {name}`\n\n{chr(10).join(f'{text}{chr(10)}' for text in texts[:-1])}\n"
        f"```sh\n{examples}\n```\n\n{_table(own)}\n{texts[-1]}\n{more}"
    )


def _summary(name: str, command: Any) -> str:
    sentence = re.split(r"(?<=\.)\s", command.help)[0]
    return f"| [`headrace {name}`](#{_anchor(name)}) | {_markdown(sentence)} |\n"


def page() -> str:
    """Return the page.

    Raises:
        LookupError: `MORE` names a command that is none, or an option has no word for its value.
    """
    commands = dict(_named(typer.main.get_command(app).commands))  # type: ignore[attr-defined]
    if strangers := MORE.keys() - commands.keys():
        raise LookupError(f"no such command: {', '.join(strangers)}")
    every = [{part.name: part for part in command.params} for command in commands.values()]
    shared = set.intersection(*map(set, every))
    parts = [
        f"{HEAD}\n| command | what it does |\n|---|---|\n",
        *(_summary(name, command) for name, command in commands.items()),
        "\nEvery command takes these:\n\n",
        _table([every[0][name] for name in sorted(shared)]),
        *(_section(name, command, shared) for name, command in commands.items()),
    ]
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(generated_page.run(PAGE, page, __doc__ or ""))
