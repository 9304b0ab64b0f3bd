"""Keys in use, and the record that uses each of them (FLIP-425, "Element Order")."""

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
        """Owner of each occupied key. Always the same dict."""

    def __len__(self) -> int:
        """Return the number of occupied keys."""
        return len(self.occupied)

    def occupy(self, context: RecordContext) -> bool:
        """Occupy the context's key, unless another context owns it; return whether it owns the key now."""
        if self.occupied.setdefault(context.key_json, context) is not context:
            return False
        context.owns_key = True
        return True

    def release(self, context: RecordContext) -> None:
        """Release the key, which the context must own."""
        del self.occupied[context.key_json]
        context.owns_key = False

    def any(self) -> RecordContext | None:
        """Return one of the records that own a key; None if there is none."""
        return next(iter(self.occupied.values()), None)

    def pass_on(self, owner: RecordContext, heir: RecordContext) -> None:
        """Pass the key of `owner` directly to `heir`, which has the same key."""
        self.occupied[owner.key_json] = heir
        owner.owns_key = False
        heir.owns_key = True
