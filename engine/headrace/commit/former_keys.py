"""Keys in stored state that key functions no longer make: results were once stored as Python has them, such as 5 of a declared float."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from headrace.api.graph import NULL_KEY
from headrace.api.types import key_types
from headrace.log.declared import UNKNOWN, OperatorKeys, declared_keys
from headrace.plan.stages import KeyedStage, Plan
from headrace.records.keys import typed_key
from headrace.state.codec import encode

KeysOf = Callable[[str], Iterable[str]]
"""Function that returns the keys under which an operator has live rows, as JSON."""


def former_key_problems(stored: OperatorKeys, plan: Plan, keys_of: KeysOf) -> Iterator[str]:
    """Yield a sentence for each operator with a key that its functions no longer make, with the ways out.

    Keys are read of operators alone whose functions were recorded while that was so: the next checkpoint records them anew.
    """
    declared = declared_keys(plan)
    for stage in plan.keyed:
        pairs = [
            (before, now)
            for before, now in zip(stored.get(stage.name, ()), declared[stage.name], strict=False)
            if before is not None and now is not None
        ]
        are_known = all(now.types is not None and UNKNOWN not in now.types for _, now in pairs)
        if not are_known or not any(before.may_be_unlike(now) for before, now in pairs):
            continue
        is_made = _is_made_by(stage)
        former = next((text for text in keys_of(stage.name) if not is_made(text)), None)
        if former is not None:
            shown = " and ".join(dict.fromkeys(str(now) for _, now in pairs))
            yield (
                f"operator '{stage.name}': its state has the key {former:.100}, which was stored as the function returned it. "
                f"The code has the key {shown}, and results now get the declared type, as fields have it (5 of a float is 5.0): the stored key "
                "would not be found. Nothing was changed. If the function always returns values of one type, take the annotation away: results "
                "without a declared type are stored as before. Or give the operator a new name, which starts empty, and delete the state of "
                "the old one (headrace state drop)."
            )


def _is_made_by(stage: KeyedStage) -> Callable[[str], bool]:
    """Return what says whether a key has the form of its declared type."""
    record, key = next((record, key) for record, key in zip(stage.takes, stage.keys, strict=True) if key is not None)
    types = key_types(record, key)

    def is_made(text: str) -> bool:
        value = msgspec.json.decode(text)
        try:
            return value == NULL_KEY or encode(typed_key(value, types, key)) == text.encode()
        except (ValueError, TypeError):  # another type, such as `true` of a declared int
            return False

    return is_made
