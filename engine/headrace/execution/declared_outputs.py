"""Outputs of a function that declares what its changes mean: each row kind is compared with `emits=`."""

from __future__ import annotations

import msgspec

from headrace.api import ChangelogMode, Process, RowKind
from headrace.execution.process_context import Outputs

_INSERTS = frozenset({RowKind.INSERT})
_UPSERTS = frozenset(RowKind) - {RowKind.UPDATE_BEFORE}


class DeclaredOutputs(Outputs):
    """Outputs that refuse row kinds which the declared mode does not have.

    `type` is None, so that each record comes to `taken`: functions without `emits=` pay nothing.
    """

    __slots__ = ("_kinds", "_mode")

    def __init__(self, operator: Process, mode: ChangelogMode) -> None:
        """Start with nothing emitted."""
        super().__init__(operator)
        self.type = None
        self._mode = mode
        self._kinds = _INSERTS if mode.is_insert else _UPSERTS

    def taken(self, record: msgspec.Struct, kind: RowKind) -> msgspec.Struct:
        """Return what the main output takes for a record. Raises `ValueError` for a row kind that the mode does not have."""
        if kind not in self._kinds:
            msg = f"the function declares emits={self._mode.declaration}, and emits {RowKind(kind).symbol}: {self._way_out()}"
            raise ValueError(msg)
        return super().taken(record, kind)

    def _way_out(self) -> str:
        if self._mode.is_insert:
            return "declare ChangelogMode.upsert(KEY), or ChangelogMode.RETRACT if each +U follows a -U with the whole old row"
        return "leave the -U out, or declare ChangelogMode.RETRACT if each +U follows one with the whole old row"


def outputs_of(operator: Process) -> Outputs:
    """Return the empty outputs of an operator. Retractions of all kinds need no comparison."""
    mode = operator.emits
    return Outputs(operator) if mode is None or mode.is_retract else DeclaredOutputs(operator, mode)
