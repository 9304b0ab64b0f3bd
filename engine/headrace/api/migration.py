"""Migrations: they convert stored state to a type that cannot read it as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Old = TypeVar("Old")
New = TypeVar("New")


@dataclass(frozen=True, slots=True)
class Migration(Generic[Old, New]):
    """Converts all entries of a state from an old type to its successor.

        legs = ValueState("legs", Leg, migrate=Migration(OldLeg, lambda old: Leg(old.at * 1000)))

    They are converted before the first task of a run that opens the unmigrated state. Each stored value (element of a
    list, value of a map, accumulator) is decoded as `old` and given to `function`, and its result is stored; None
    removes the value. The conversion is a checkpoint of its own, which a restore undoes. Keys, namespaces and TTL
    stamps do not change.

    `function` is called once for each value, in no order, and must depend only on the value. An exception fails the run
    with `UserFunctionError`, and leaves the state as it was. `old` must fit the stored values, else `StateSchemaError`.

    `number` counts a state's migrations from 1. A state remembers the last one applied, so that none is applied twice,
    even if both types look alike (knots become metres a second). Keep older ones for as long as there are jobs,
    savepoints or branches that have not applied them:

        migrate=(Migration(First, to_second, number=1), Migration(Second, to_third, number=2))

    Raises `ValueError` for a number below 1.
    """

    old: Any
    function: Callable[[Old], New | None]
    number: int = 1

    def __post_init__(self) -> None:
        """Check the number."""
        if self.number < 1:
            msg = f"a migration's number counts from 1, it cannot be {self.number}"
            raise ValueError(msg)


Migrations = Migration[Any, Any] | Sequence[Migration[Any, Any]] | None
"""Migrations of a state, as its declaration takes them."""


def ordered_migrations(migrate: Migrations) -> tuple[Migration[Any, Any], ...]:
    """Return a state's migrations. Raises `ValueError` unless their numbers count up from 1 without a gap."""
    steps = () if migrate is None else (migrate,) if isinstance(migrate, Migration) else tuple(migrate)
    numbers = [step.number for step in steps]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        msg = f"the migrations of a state must be numbered without a gap, in order, not {', '.join(map(str, numbers))}"
        raise ValueError(msg)
    return steps
