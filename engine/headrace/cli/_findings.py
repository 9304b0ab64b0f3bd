"""Findings of checks: ok, a warning, or a failure, each with advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import typer

from headrace.errors import CheckFailed

Outcome = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check: its name, the result, details, and advice."""

    check: str
    outcome: Outcome
    detail: str
    advice: str = ""


def finish(findings: Sequence[Finding], *, as_json: bool, job: str | None = None) -> None:
    """Print findings; end with exit code 1 if one of them is a failure."""
    from headrace.cli._output import print_json, show, table

    failed = [finding for finding in findings if finding.outcome == "fail"]
    if as_json:
        print_json({"job": job, "ok": not failed, "findings": findings})
    else:
        rows = [(f.outcome, f.check, f"{f.detail}\n-> {f.advice}" if f.advice else f.detail) for f in findings]
        show(table(("", "check", "what was found"), rows))
    if failed:
        raise typer.Exit(CheckFailed.exit_code)


def as_warnings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the same findings, with each failure as a warning."""
    return [replace(finding, outcome="warn") if finding.outcome == "fail" else finding for finding in findings]
