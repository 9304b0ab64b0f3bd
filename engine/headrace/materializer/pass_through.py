"""Replacement for a materializer where no history is needed: it emits the last change of each key (FLIP-544).

Where the upsert key is the primary key, all changes of a key come from one place, in order. A retraction (`-U`, `-D`) deletes
its key, an addition sets its row, and the last change of a micro-batch counts. So the step between an operator and its table may
drop rows: of an update whose new row a filter refuses, the old row's `-U` is left, which deletes the key.

    changes of a key    +I  -U  +U      -U  +U  -U      +I  -D
    its net change              +U              -D          -D
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.api.graph import Emit, UpsertMaterialize
from headrace.api.records import RowKind
from headrace.execution.element import Element
from headrace.materializer.histories import Histories, HistoryChange
from headrace.materializer.identities import ChangedKeys, IdentifiedRows, Mask, projection
from headrace.materializer.upsert_materializer import DELETE, INSERT, UPDATE_AFTER, Output, make_output
from headrace.options import Layouts, Strategy
from headrace.records.order import FIRST_OUTPUT
from headrace.state.backend import HISTORY_PREFIX, StateBackend, Write

EMITTED: tuple[RowKind, ...] = (INSERT, DELETE, UPDATE_AFTER, DELETE)
"""The kind that is emitted for each row kind: the row before an update deletes its key, until the row after it comes."""


class PassThrough:
    """One operator without a history, in one task. `record` is the type of the rows."""

    def __init__(
        self,
        operator: UpsertMaterialize,
        backend: StateBackend,
        *,
        record: type[msgspec.Struct] | None = None,
        from_columns: bool = False,
    ) -> None:
        """Read from `backend` only histories that the operator kept earlier; nothing else is kept between tasks.

        `from_columns` says that the rows come from columns: these need no check.
        """
        self.metrics: Counter[str] = Counter()
        self._emit = operator.emit
        self._rows = IdentifiedRows(operator.name, record, (), one_a_key=True, from_columns=from_columns)
        self._taken: list[Output] = []
        self._histories = Histories(backend, Layouts(Strategy.VALUE, 1, 0), projection(()))
        self._has_histories = backend.may_have_kind(HISTORY_PREFIX)

    def run(self, batches: Iterable[Sequence[Element]]) -> None:
        """Process elements in arrival order. Raises `UserFunctionError` for a row with a number that JSON cannot represent."""
        for batch in batches:
            texts, _ = self._rows.read(batch)
            self._forget(dict.fromkeys(element.key_json for element in batch))
            self.metrics["records"] += len(batch)
            self._taken += [
                make_output((order + FIRST_OUTPUT, EMITTED[kind], key, raw))
                for (order, _, kind, key, _, _), raw in zip(batch, texts, strict=True)
            ]

    def pass_columns(self, changes: ChangedKeys) -> Mask | None:
        """Process all changes of a task, without their rows; return which of them are emitted, with the kinds of `EMITTED`. None: all are."""
        self.metrics["records"] += len(changes.numbers)
        self._forget(changes.keys)
        return None if self._emit is Emit.EVERY_CHANGE else changes.last_of_keys()

    def needed(self, changes: ChangedKeys) -> Mask | None:
        """Return which of all changes have an effect, and count the others; None: all have one. Called before `run`."""
        if self._emit is Emit.EVERY_CHANGE:
            return None
        self._forget(changes.keys)
        needed = changes.last_of_keys()
        self.metrics["records"] += len(needed) - int(needed.sum())
        return needed

    def changes(self) -> list[HistoryChange]:
        """Return the removed rows, as `UpsertMaterializer.changes` does."""
        return self._histories.changes()

    def writes(self) -> Iterator[Write]:
        """Return those changes as writes to the backend."""
        return self._histories.writes()

    def outputs(self) -> list[Output]:
        """Return the rows to emit: every change, or the last one of each key, in arrival order."""
        if self._emit is Emit.EVERY_CHANGE:
            return self._taken
        return sorted({output.key_json: output for output in self._taken}.values())

    def _forget(self, keys: Iterable[bytes]) -> None:
        """Remove the histories of these keys that earlier code of the pipeline stored.

        They miss these changes: if the operator ever kept histories again, long deleted rows would come back. The
        stored histories of keys without changes stay correct.
        """
        if not self._has_histories:  # as nearly always: a read for each key is a sixth of the time of Nexmark's q18
            return
        self._histories.load(keys)
        for key in keys:
            if self._histories.live[key].size:
                self._histories.replace(key, ())
