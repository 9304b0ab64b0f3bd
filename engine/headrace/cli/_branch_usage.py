"""Storage costs of branches, in the output of `status`, `vacuum` and `branch list`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.names import counted

if TYPE_CHECKING:
    from headrace.commit.branch_usage import BranchUsage
    from headrace.config import JobConfig

_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def usages_of(config: JobConfig) -> list[dict[str, Any]]:
    """Return the costs of each branch of a job as plain values."""
    from headrace.commit.branch_usage import branch_usages

    return [_plain(usage) for usage in branch_usages(config)]


def sentences_about(job: str, usages: Iterable[dict[str, Any]]) -> list[str]:
    """Return a sentence for each branch."""
    return [
        f"{job}: branch '{usage['name']}' is {usage['age']} old and has {counted(usage['bytes'], 'byte')}; vacuum spares "
        f"{counted(usage['held_back_bytes'], 'byte')} of the job for it"
        + ("" if usage["problem"] is None else f"; {usage['problem']}")
        for usage in usages
    ]


def _plain(usage: BranchUsage) -> dict[str, Any]:
    from headrace.cli._output import at_time

    return {
        "name": usage.branch.name,
        "created_at": at_time(usage.branch.created_at),
        "age": _age(usage.age),
        "age_seconds": usage.age // 1000,
        "bytes": usage.own.size,
        "held_back_files": usage.held_back.files,
        "held_back_bytes": usage.held_back.size,
        "problem": usage.problem,
    }


def _age(milliseconds: int) -> str:
    """Return a span in the largest unit that gives at least two, as `36 hours` or `3 days`."""
    unit, length = next((entry for entry in _UNITS if milliseconds >= 2 * entry[1]), _UNITS[-1])
    count = max(0, milliseconds // length)
    return counted(count, unit)
