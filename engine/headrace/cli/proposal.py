"""Corrections by hand: what one would change is shown; then it is applied by `--apply`, or by somebody at a terminal who says yes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from headrace.cli.arguments import IN_JSON, NOT_CHANGED, confirm, new_run_id, reason
from headrace.report import Block, Report, facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import JobConfig
    from headrace.edits.edit import HandEdit
    from headrace.log.checkpoint import Checkpoint


class Shown(NamedTuple):
    """Facts and blocks that say what an edit does: the facts for machines, the blocks for people."""

    facts: Mapping[str, Any]
    blocks: Iterable[Block | str | None]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Correction that a command has looked at, and not applied."""

    blocks: tuple[Block | str | None, ...]
    why: str | None
    apply: Callable[[str], Report]
    """Applies it for a reason, unless the job has gone on since the look."""

    def answered(self, context: Any) -> Report:
        """Return the report of the command: of a dry run, or where somebody at a terminal says yes, of the applied correction.

        Raises `ConfigError` where somebody at a terminal says no.
        """
        if context.meta.get(IN_JSON) or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return Report(*self.blocks, NOT_CHANGED)
        from headrace.cli.output import print_text

        print_text(Report(*self.blocks))
        sys.stdout.flush()
        confirm("Apply?")
        return self.apply(self.why or _asked_reason())


def _asked_reason() -> str:
    """Return the reason that somebody at a terminal gives. Raises `ConfigError` where the input ends, or at Ctrl-C."""
    try:
        return str(typer.prompt("Why? (recorded with the change)", err=True))
    except typer.Abort:
        return reason(None)


def corrected(
    config: JobConfig,
    edit: HandEdit[Any],
    shown: Callable[[Any], Shown],
    *,
    run_id: str | None,
    apply: bool,
    why: str | None,
) -> Report | Proposal:
    """Look at an edit, and apply it if that is wanted. `shown` says what its effect is.

    Raises `ConfigError` when an edit that is applied has no reason, and the errors of `headrace.edits.edit.apply`.
    """
    from headrace.edits.edit import apply as apply_edit
    from headrace.edits.edit import look

    if apply:
        reason(why)
    effect, seen = look(config, edit)
    own, blocks = shown(effect)
    blocks = tuple(blocks)

    def applied(given: str, *before: Block | str | None, seen: int | None = None) -> Report:
        by_hand = replace(edit, why=f"{reason(given)} (by {_user()})")  # type: ignore[type-var]  # edits by hand are dataclasses
        checkpoint = apply_edit(config, by_hand, run_id or new_run_id(), seen=seen)
        head = facts(job=config.job, branch=config.branch, applied=True, checkpoint=checkpoint.checkpoint_id, **own)
        return Report(*head, *before, *_done(config, checkpoint))

    if apply:
        return applied(reason(why), *blocks)
    head = facts(job=config.job, branch=config.branch, applied=False, checkpoint=None, **own)
    where = None if config.branch is None else f"On branch {config.branch} of {config.job}:"
    return Proposal((*head, where, *blocks), why, lambda given: applied(given, seen=seen))


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have users without a name
        return "a user without a name"


def named(config: JobConfig) -> str:
    """Return how a command line names a job, or a branch of it."""
    return config.job if config.branch is None else f"{config.job} --branch {config.branch}"


def _done(config: JobConfig, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what was done, and how to undo it."""
    where = config.job if config.branch is None else f"{config.job}, branch {config.branch}"
    yield f"{where}: changed, as checkpoint {checkpoint.checkpoint_id}."
    yield f"To undo: headrace restore {named(config)} --to {checkpoint.parent_id} --why ..."
