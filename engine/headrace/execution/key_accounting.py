"""Which keys are being worked on, and by which record (FLIP-425, "Element Order")."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.execution.record_context import RecordContext


class KeyAccountingUnit:
    """For each occupied key, the one record that may access its state."""

    __slots__ = ("occupied",)

    def __init__(self) -> None:
        """Start with no key occupied."""
        self.occupied: dict[bytes, RecordContext] = {}
        """By key, who has it. Always the same dict."""

    def __len__(self) -> int:
        """The number of occupied keys."""
        return len(self.occupied)

    def occupy(self, context: RecordContext) -> bool:
        """Take the context's key for it, unless another one has it; whether it has the key now."""
        if self.occupied.setdefault(context.key_json, context) is not context:
            return False
        context.owns_key = True
        return True

    def release(self, context: RecordContext) -> None:
        """Give the key up, which the context must own."""
        del self.occupied[context.key_json]
        context.owns_key = False

    def any(self) -> RecordContext | None:
        """One of the records that own a key; None if there is none."""
        return next(iter(self.occupied.values()), None)

    def pass_on(self, owner: RecordContext, heir: RecordContext) -> None:
        """Give the key of `owner` to `heir` of the same key, with nobody in between."""
        self.occupied[owner.key_json] = heir
        owner.owns_key = False
        heir.owns_key = True
