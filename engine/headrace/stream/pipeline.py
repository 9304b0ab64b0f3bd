"""A pipeline: the operators of a job and the streams between them, built by the methods of streams."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar, get_args

import msgspec

from headrace.api.changelog_inference import output_changes
from headrace.api.graph import Input, Node, Operator, SinkNode, SourceNode, StatelessStep
from headrace.api.types import check_field, check_record
from headrace.names import check_name
from headrace.stream.stream import Stream

R = TypeVar("R", bound=msgspec.Struct)


class Pipeline:
    """Graph of a job: sources give streams, operators make new streams, and sinks end them.

        p = Pipeline("shop")
        orders = p.source("orders", Order, event_time="placed_at")
        orders.filter(is_large).sink("large_orders")
        orders.key_by("customer").process("totals", Totals()).sink("totals")

    `sink` returns the pipeline, so that a line of operators can be written as one expression.

    Names are identifiers (lower case, digits, underscores, at most 63 characters). Names of sources and operators are
    unique within the pipeline; a sink may have the name of the operator before it. An operator's name is stored with
    its state: a renamed operator starts with empty state. Raises `ValueError` for a name that breaks these rules.
    """

    def __init__(self, name: str, /) -> None:
        """Create an empty pipeline. Raises `ValueError` for a name that is not an identifier."""
        self.name = check_name(name)
        self.nodes: list[Node] = []

    def __repr__(self) -> str:
        """Name the pipeline and its operators."""
        return f"<Pipeline '{self.name}': {', '.join(operator.name for operator in self.operators)}>"

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators, in the order in which they were added."""
        return tuple(node.operator for node in self.nodes)

    def source(
        self,
        name: str,
        record: type[R],
        /,
        *,
        event_time: str,
        order_by: tuple[str, ...] = (),
        row_kind: str | None = None,
        out_of_orderness: timedelta = timedelta(0),
    ) -> Stream[R]:
        """Read `record`s from the source `name`.

        `event_time` is the field with the record's time (`Timestamp`). Arrival order is the source's own (file, row);
        `order_by` sorts the rows of one file instead. `row_kind` is the column with `+I`, `-U`, `+U` or `-D`; without
        one every row is an insert. The watermark stays `out_of_orderness` behind the latest event time. Where streams
        of several sources meet, their records come in the order of event time, each source's own order kept, and the
        watermark is the smallest of theirs.

        Raises `ValueError` for a negative `out_of_orderness`, a name that is taken or no identifier, and a field that
        `record` lacks; `TypeError` unless `record` is a class derived from `Struct`.
        """
        if out_of_orderness < timedelta(0):
            msg = f"out_of_orderness of '{name}' must not be negative, not {out_of_orderness}"
            raise ValueError(msg)
        check_record(f"source '{name}'", record)
        for column in (event_time, *order_by):
            check_field(record, column)
        node = self._add(SourceNode(name, record, event_time, order_by, row_kind, out_of_orderness))
        return Stream(self, node, record)

    def _add(self, operator: Operator, *inputs: Input) -> Node:
        """Add an operator with its inputs.

        Raises `ValueError` for a name that another operator has, and for an operator that the changes of its inputs do not fit.
        """
        if not isinstance(operator, get_args(StatelessStep)):
            self._check_name(operator)
        node = Node(operator, inputs, output_changes(operator, inputs))
        self.nodes.append(node)
        return node

    def _check_name(self, operator: Operator) -> None:
        check_name(operator.name)
        if isinstance(operator, SinkNode):
            return  # the planner lists all streams that go to one sink
        steps = (SinkNode, *get_args(StatelessStep))
        if any(operator.name == other.name for other in self.operators if not isinstance(other, steps)):
            msg = f"pipeline '{self.name}' has two operators named '{operator.name}': give one of them another name"
            raise ValueError(msg)
