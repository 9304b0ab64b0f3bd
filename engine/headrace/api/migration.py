"""Migrations: they convert stored state whose type changes in a way that cannot be read as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Old = TypeVar("Old")
New = TypeVar("New")


@dataclass(frozen=True, slots=True)
class Migration(Generic[Old, New]):
    """Converts all that a state holds from an old type to the one that comes after it.

        legs = ValueState("legs", Leg, migrate=Migration(OldLeg, lambda old: Leg(old.at * 1000)))

    Before the first task of a run that finds the state unmigrated, every stored value (element of a list, value of a map,
    accumulator) is read as `old`, given to `function`, and stored as what that returns; None removes it. That is one checkpoint of
    its own, which a restore undoes. Keys, namespaces and the times that TTL goes by stay as they are.

    `function` is called once for each value, in no order, and must depend on nothing else. An exception fails the run with
    `UserFunctionError`, and leaves the state as it was. `old` must fit what is stored, else `StateSchemaError`.

    `number` counts a state's migrations from 1. A state remembers the last one that was applied, so that none is applied twice,
    even if both types look alike (knots become metres a second). Keep older ones for as long as there are jobs, savepoints or
    branches that have not been through them:

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
"""How a state declares them."""


def ordered_migrations(migrate: Migrations) -> tuple[Migration[Any, Any], ...]:
    """A state's migrations. Raises `ValueError` unless their numbers go up one by one."""
    steps = () if migrate is None else (migrate,) if isinstance(migrate, Migration) else tuple(migrate)
    numbers = [step.number for step in steps]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        msg = f"the migrations of a state must be numbered without a gap, in order, not {', '.join(map(str, numbers))}"
        raise ValueError(msg)
    return steps
