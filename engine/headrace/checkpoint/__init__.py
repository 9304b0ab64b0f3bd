"""State in Delta tables: the commit protocol, restore, compaction. Imports are cheap; Delta is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.checkpoint._compaction import compact
    from headrace.checkpoint._due_timers import any_timer_due
    from headrace.checkpoint._requeue import requeue
    from headrace.checkpoint._restore import restore, restore_in, savepoint
    from headrace.checkpoint._state_migration import settle_schemas
    from headrace.checkpoint._vacuum import vacuum
    from headrace.checkpoint._verify import Finding, verify

_HOMES = {
    "Finding": "_verify",
    "any_timer_due": "_due_timers",
    "compact": "_compaction",
    "requeue": "_requeue",
    "restore": "_restore",
    "restore_in": "_restore",
    "savepoint": "_restore",
    "settle_schemas": "_state_migration",
    "vacuum": "_vacuum",
    "verify": "_verify",
}

__all__ = [
    "Finding",
    "any_timer_due",
    "compact",
    "requeue",
    "restore",
    "restore_in",
    "savepoint",
    "settle_schemas",
    "vacuum",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'headrace.checkpoint' has no attribute '{name}'"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(f"headrace.checkpoint.{_HOMES[name]}"), name)
