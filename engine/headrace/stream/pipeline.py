"""Graph of a pipeline, which streams add their operators to; `headrace.stream.stream` has the pipeline itself."""

from __future__ import annotations

from typing import get_args

from headrace.api.changelog_inference import output_changes
from headrace.api.graph import Input, Node, Operator, SinkNode, StatelessTransform
from headrace.names import check_name


class PipelineGraph:
    """Operators of a job, and which of them read which."""

    def __init__(self, name: str, /) -> None:
        """Create an empty graph. Raises `ValueError` for a name that is not an identifier."""
        self.name = check_name(name)
        self.nodes: list[Node] = []

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators, in the order in which they were added."""
        return tuple(node.operator for node in self.nodes)

    def _add(self, operator: Operator, *inputs: Input) -> Node:
        """Add an operator with its inputs.

        Raises `ValueError` for a name that another operator has, and for an operator that the changes of its inputs do not fit.
        """
        if not isinstance(operator, get_args(StatelessTransform)):
            self._check_name(operator)
        node = Node(operator, inputs, output_changes(operator, inputs))
        self.nodes.append(node)
        return node

    def _check_name(self, operator: Operator) -> None:
        check_name(operator.name)
        if isinstance(operator, SinkNode):
            return  # the planner lists all streams that go to one sink
        transforms = (SinkNode, *get_args(StatelessTransform))
        if any(operator.name == other.name for other in self.operators if not isinstance(other, transforms)):
            msg = f"pipeline '{self.name}' has two operators named '{operator.name}': give one of them another name"
            raise ValueError(msg)
