"""What stands in for a materializer that is not needed: the last change of each key, and no history (FLIP-544).

Where the upsert key is the primary key, all changes of a key come from one place, in order. An update's old row says
nothing then that its new row does not; so it is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from engine.api import Emit, RowKind, UpsertMaterialize
from engine.execution.element import Element, output_order
from engine.materializer.identities import Rows
from engine.materializer.upsert_materializer import Output


class PassThrough:
    """One operator without a history, in one task. `record` is the type of the rows."""

    def __init__(self, operator: UpsertMaterialize, *, record: type[msgspec.Struct] | None = None) -> None:
        """Nothing is kept from one task to the next."""
        self.metrics: Counter[str] = Counter()
        self._emit = operator.emit
        self._rows = Rows(operator.name, record, (), one_a_key=True)
        self._taken: list[Output] = []

    def run(self, batches: Iterable[Sequence[Element]]) -> None:
        """Take in elements in arrival order. Raises `UserFunctionError` for a row that does not fit the record type."""
        for batch in batches:
            texts, _ = self._rows.read(batch)
            self.metrics["records"] += len(batch)
            self._taken += [
                Output(output_order(element.order, 0), RowKind(element.kind), element.key_json, raw)
                for element, raw in zip(batch, texts, strict=True)
                if element.kind != RowKind.UPDATE_BEFORE
            ]

    def outputs(self) -> list[Output]:
        """What to send on: every change, or the last one of each key, in arrival order."""
        if self._emit is Emit.EVERY_CHANGE:
            return self._taken
        return sorted({output.key_json: output for output in self._taken}.values())
