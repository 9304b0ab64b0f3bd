"""What stands in for a materializer that is not needed: the last change of each key, and no history (FLIP-544).

Where the upsert key is the primary key, all changes of a key come from one place, in order. An update's old row says
nothing then that its new row does not; so it is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.api import Emit, RowKind, Strategy, UpsertMaterialize
from headrace.execution.element import Element
from headrace.materializer.histories import Histories, HistoryChange
from headrace.materializer.identities import IdentifiedRows, projection
from headrace.materializer.options import Layouts
from headrace.materializer.upsert_materializer import Output
from headrace.plan.order import output_order
from headrace.state.backend import StateBackend, Write


class PassThrough:
    """One operator without a history, in one task. `record` is the type of the rows."""

    def __init__(
        self, operator: UpsertMaterialize, backend: StateBackend, *, record: type[msgspec.Struct] | None = None
    ) -> None:
        """`backend` is asked for histories from when the operator kept some; nothing else is kept between tasks."""
        self.metrics: Counter[str] = Counter()
        self._emit = operator.emit
        self._rows = IdentifiedRows(operator.name, record, (), one_a_key=True)
        self._taken: list[Output] = []
        self._histories = Histories(backend, Layouts(Strategy.VALUE, 1, 0), projection(()))

    def run(self, batches: Iterable[Sequence[Element]]) -> None:
        """Take in elements in arrival order. Raises `UserFunctionError` for a row with a number that JSON has not."""
        for batch in batches:
            texts, _ = self._rows.read(batch)
            self._forget(dict.fromkeys(element.key_json for element in batch))
            self.metrics["records"] += len(batch)
            self._taken += [
                Output(output_order(element.order, 0), RowKind(element.kind), element.key_json, raw)
                for element, raw in zip(batch, texts, strict=True)
                if element.kind != RowKind.UPDATE_BEFORE
            ]

    def changes(self) -> list[HistoryChange]:
        """The rows that go: see `UpsertMaterializer.changes`."""
        return self._histories.changes()

    def writes(self) -> Iterator[Write]:
        """Those changes as the backend takes them."""
        return self._histories.writes()

    def outputs(self) -> list[Output]:
        """What to send on: every change, or the last one of each key, in arrival order."""
        if self._emit is Emit.EVERY_CHANGE:
            return self._taken
        return sorted({output.key_json: output for output in self._taken}.values())

    def _forget(self, keys: Iterable[bytes]) -> None:
        """Drop what an earlier release of the pipeline remembers of these keys.

        It will not know of these changes, so if the operator ever kept histories again, rows that are long gone would
        come back. Of keys that get no changes, what is remembered stays true.
        """
        self._histories.load(keys)
        for key in keys:
            if self._histories.live[key].size:
                self._histories.replace(key, ())
