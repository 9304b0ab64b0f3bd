"""Check of a transform's query over a source: it must compute its result from each row alone.

A query over several rows would see only the rows that happen to be in one file. The analyzed plan shows such queries. The plan that
Spark runs must keep each row in the partition of its file, and keep the order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.provision.pyspark import spark_minor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TABLE: Final = "_headrace_table_"
"""Prefix of the aliases of dimension tables."""

_ROW_BY_ROW: Final = {
    *("Project", "Filter", "Generate", "SubqueryAlias", "View", "ResolvedHint", "Join", "LateralJoin"),
}
_INSTEAD: Final = {
    "Aggregate": "an aggregate; use key_by() and window().aggregate(), or process(), behind the transform",
    "Window": "a window function; use key_by() and over(), top(), join_as_of() or process() behind the transform",
    "Distinct": "DISTINCT; use key_by() and first_by_time(), or process(), behind the transform",
    "Deduplicate": "DISTINCT; use key_by() and first_by_time(), or process(), behind the transform",
    "Sort": "a sort; give source() an order_by, or use key_by() and top() behind the transform",
    "GlobalLimit": "a limit; use filter(), or key_by() and top() behind the transform",
    "LocalLimit": "a limit; use filter(), or key_by() and top() behind the transform",
    "Offset": "an offset; use filter(), or key_by() and top() behind the transform",
    "Tail": "a limit; use filter(), or key_by() and top() behind the transform",
    "Union": "a union; take the source twice under two names, and union() the streams",
    "Intersect": "INTERSECT; use join() behind the transform",
    "Except": "EXCEPT; use join() behind the transform",
    "Sample": "a sample; use filter() with a condition on a column",
    "Pivot": "a pivot; use key_by() and process() behind the transform",
    **dict.fromkeys(
        ("MapInArrow", "MapInPandas", "FlatMapGroupsInPandas", "ArrowEvalPython", "BatchEvalPython"),
        "Python code; use map() or flat_map() behind the transform",
    ),
    **dict.fromkeys(("Repartition", "RepartitionByExpression", "RebalancePartitions"), "a repartition; leave it out"),
}
_NUMBER: Final = re.compile(r"#\d+L?")
"""Number of a column in the text of a plan."""
_WHOLE: Final = (True, False, (1 << 31) - 1, False, False)[: 4 if spark_minor() == "4.0" else 5]
"""Arguments of a plan's text for all of it; the last one came with Spark 4.1."""

_PRESERVES: Final = {
    "left": {"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"},
    "right": {"Inner", "Cross", "RightOuter"},
}
"""Joins that decide on each row of the source alone, by the side of the source."""

_NARROW: Final = {
    *(
        "Project",
        "Filter",
        "Generate",
        "BroadcastHashJoin",
        "BroadcastNestedLoopJoin",
        "WholeStageCodegen",
        "InputAdapter",
    ),
    *("MapInArrow", "ColumnarToRow", "AdaptiveSparkPlan"),
}
"""Operators of Spark's executed plans that keep rows in their partition, and in order."""


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """Check of the plans of one transform's result. `reads` are the names that the transform may read."""

    spark: SparkSession
    what: str
    reads: tuple[str, ...]

    def check(self, result: DataFrame) -> None:
        """Raise `ConfigError` for a result that cannot be computed row by row, or that differs from call to call."""
        analyzed = analyzed_plan(self.spark, result)
        problem = next(self._problems(analyzed), None) or self._problem_of_uses(analyzed)
        if problem is not None:
            raise self._refused(problem)

    def check_run(self, result: DataFrame) -> None:
        """Raise `ConfigError` for a result whose rows would leave the partition of their file."""
        plan = result._jdf.queryExecution().executedPlan()  # noqa: SLF001 - as above
        for name in _above_source(plan):
            if name not in _NARROW:
                raise self._refused(
                    f"Spark would run it by {name}, which moves rows away from their file: a join needs an equality or a table "
                    "that is small enough to broadcast, and no other hint"
                )

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(
            f"{self.what}: {problem}. A transform computes its result from each row alone, else the result would depend on how input "
            "is cut into files and micro-batches. Nothing was taken in."
        )

    def _problem_of_uses(self, plan: Any) -> str | None:
        count = _uses(plan)
        if count == 1:
            return None
        if not count:
            return f"its result has nothing of the source: read '{self.reads[0]}' (it may read {', '.join(self.reads)})"
        return "it reads the source twice: each row stands for itself; join() streams behind the transform"

    def _problems(self, plan: Any) -> Iterator[str]:
        """Yield the problems of the operators between the result and the source."""
        if _is_source(plan):
            return
        if _table_of(plan) is not None:
            return
        kind = _kind(plan)
        children = _listed(plan.children())
        subqueries = _listed(plan.subqueries())
        yield from self._problems_of_leaf(plan, kind, children)
        if any(map(_uses, subqueries)):
            yield "it has a subquery that reads the source, and so many rows at once; join() streams behind the transform"
        if children and _uses(plan):
            if kind not in _ROW_BY_ROW:
                yield f"it has {_INSTEAD.get(kind, f'the operator {kind}, which Headrace does not know to work row by row')}"
            if kind in {"Join", "LateralJoin"}:
                yield from _problems_of_join(plan, children)
        yield from self._problems_of_expressions(plan)
        for below in (*children, *subqueries):
            yield from self._problems(below)

    def _problems_of_leaf(self, plan: Any, kind: str, children: list[Any]) -> Iterator[str]:
        if not children and kind not in {"OneRowRelation", "LocalRelation"}:
            yield (
                f"it reads something else ({' '.join(plan.toString().split()):.100}), of which no checkpoint would keep the version: "
                f"it may read {', '.join(self.reads)}; name further Delta tables in tables=(...)"
            )

    def _problems_of_expressions(self, plan: Any) -> Iterator[str]:
        patterns = self.spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]  # noqa: SLF001 - as above
        for expression in _listed(plan.expressions()):
            shown = f"{_NUMBER.sub('', str(expression.toString())):.100}"
            if expression.containsPattern(patterns.PYTHON_UDF()):
                yield f"it calls a function of Python ({shown}); use map() or flat_map() behind the transform"
            if not expression.deterministic() or expression.containsPattern(patterns.CURRENT_LIKE()):
                yield f"{shown} has another value each time; give the source such a column, or use map() behind the transform"


def _problems_of_join(plan: Any, children: list[Any]) -> Iterator[str]:
    sides = [side for side, child in zip(("left", "right"), children, strict=False) if _uses(child)]
    if len(sides) > 1 or _kind(plan) == "LateralJoin":
        return
    kind = str(plan.joinType().toString())
    if kind.startswith("ExistenceJoin") or kind in _PRESERVES[sides[0]]:
        return
    yield (
        f"it has a join of type {kind} that keeps rows of a table without a row of the source, and these depend on what is not "
        "there yet; keep the rows of the source (LEFT JOIN from the source), or join() streams behind the transform"
    )


def analyzed_plan(spark: SparkSession, result: DataFrame) -> Any:
    """Return the analyzed plan of a result, with common table expressions in their places."""
    optimizer = spark._jvm.org.apache.spark.sql.catalyst.optimizer  # type: ignore[union-attr]  # noqa: SLF001 - pyspark has no other way to the plan
    return optimizer.InlineCTE(True, False).apply(result._jdf.queryExecution().analyzed())  # noqa: SLF001 - as above


def in_words(plan: Any) -> str:
    """Return a plan as text without the numbers that Spark gives to columns each time: equal plans have equal texts."""
    text = str(plan.treeString(*_WHOLE))
    numbers: dict[str, str] = {}
    return _NUMBER.sub(lambda match: numbers.setdefault(match[0], f"#{len(numbers)}"), text)


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _kind(plan: Any) -> str:
    return str(plan.getClass().getSimpleName()).removesuffix("Exec")


def _is_source(plan: Any) -> bool:
    children = _listed(plan.children())
    return _kind(plan) == "MapInArrow" and any(_kind(child) == "Range" for child in children)


def _table_of(plan: Any) -> str | None:
    alias = str(plan.alias()) if _kind(plan) == "SubqueryAlias" else ""
    return alias.removeprefix(TABLE) if alias.startswith(TABLE) else None


def _uses(plan: Any) -> int:
    """Count the uses of the source in a plan, except those in subqueries."""
    if _is_source(plan):
        return 1
    return sum(map(_uses, _listed(plan.children())))


def _above_source(plan: Any) -> Iterator[str]:
    """Yield the operators of an executed plan that rows of the source pass, from the last to the first."""
    for child in _listed(plan.children()):
        if _is_above(child) or _is_source_run(child):
            yield _kind(plan)
            yield from _above_source(child)


def _is_above(plan: Any) -> bool:
    return any(_is_source_run(child) or _is_above(child) for child in _listed(plan.children()))


def _is_source_run(plan: Any) -> bool:
    return _kind(plan) == "Range"
