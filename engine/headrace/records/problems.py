"""Values that do not fit: the reason of each, and what takes their place in a column."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.foreign_values import shown_value


class Problem(NamedTuple):
    """Reason why a value does not fit: the path below its column, as in `[2].price`, and a text."""

    path: str
    why: str
    of_file: bool = False
    """Whether a file with such a value is refused as a whole: all its values are likely to be like this one."""


Problems = dict[int, Problem]
"""First problem of each value, by position."""


class UnfitValue(Exception):  # noqa: N818 - it names the value, as "bad row" does
    """A single value does not fit. It never leaves this package."""

    def __init__(self, why: str, path: str = "", *, of_file: bool = False) -> None:
        """Take the parts of the problem."""
        super().__init__(why)
        self.problem = Problem(path, why, of_file)


def refuse(array: pa.Array, wrong: pa.Array, problems: Problems, why: str) -> pa.Array:
    """Return the array with nulls where it is `wrong`, and add the problems: "is", the value, and `why`."""
    positions = pc.indices_nonzero(wrong).to_pylist()
    if not positions:
        return array
    for position in positions:
        problems.setdefault(position, Problem("", f"is {shown_value(array[position])}{why}"))
    return pc.if_else(pc.fill_null(wrong, False), pa.scalar(None, array.type), array)


def utf8(array: pa.Array, problems: Problems) -> pa.Array:
    """Return texts, null where they are not UTF-8; add the problems."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        wrong = pa.array([_is_broken(value) for value in array], pa.bool_())
        return refuse(array, wrong, problems, ", which is not UTF-8")
    return array


def _is_broken(text: pa.StringScalar) -> bool:
    try:
        text.as_py()
    except UnicodeDecodeError:
        return True
    return False
