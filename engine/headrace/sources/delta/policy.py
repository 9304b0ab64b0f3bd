"""Which commits of a Delta table a source passes over, by `on_change` of the job's file."""

from __future__ import annotations

from typing import Final

from headrace.storage.delta_log import DeltaCommit

_DELETIONS: Final = frozenset({"DELETE", "TRUNCATE"})


def is_rewrite(commit: DeltaCommit) -> bool:
    """Return whether a commit removes or rewrites rows. A RESTORE does, even if it only brings rows back."""
    return bool(commit.dropped) or (commit.is_restore and bool(commit.appended))


def is_passed_over(commit: DeltaCommit, policy: str, *, reads_changes: bool = False, is_new: bool = True) -> bool:
    """Return whether a source with this `on_change` passes over a commit as a whole.

    Whatever that says, it passes over a promotion of the job that writes the table, unless that has brought input which the job had not taken
    in, too. A source that reads changes takes all of it in. `is_new` is False for commits from before the job began.
    """
    if reads_changes or policy == "as_changes":
        return False
    if is_new and commit.correction is not None and is_rewrite(commit) and not commit.correction.is_ahead:
        return True
    if policy == "skip":
        return is_rewrite(commit)
    return policy == "skip_deletes" and is_rewrite(commit) and _is_deletion(commit)


def _is_deletion(commit: DeltaCommit) -> bool:
    """Return whether a commit only deletes rows. A RESTORE may take back whole commits, so it does not count as one."""
    return not commit.is_restore and (commit.operation in _DELETIONS or not commit.appended)
