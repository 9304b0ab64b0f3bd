"""Check of keys: compare the keys that the code declares with the keys of stored state and sinks, before any task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.api import UpsertMaterialize
from headrace.api.upsert_materialize import Lag
from headrace.commit.log import CheckpointLog
from headrace.commit.operator_keys import OperatorKeys, declared_keys
from headrace.commit.sink_tables import SinkTable, SinkTables
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.plan.stages import KeyedStage, Plan


def operator_key_problems(
    job: str, stored: OperatorKeys, plan: Plan, has_state: Callable[[str], bool]
) -> Iterator[str]:
    """Yield a sentence for each operator whose key differs from the key of its stored state, with the ways out.

    `has_state` returns whether an operator has live rows; it is called for operators whose key has changed. Operators without a
    recorded key pass.
    """
    for name, change in changed_keys(stored, plan):
        if has_state(name):
            yield (
                f"{change} Nothing was changed. Take the change back. Or give the operator a new name, which starts empty, and "
                f"delete the state of the old one: headrace state drop {job} --operator {name}. If both give the same keys, and a "
                "field has another name only, key by a function that returns it."
            )


def changed_keys(stored: OperatorKeys, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield each operator whose key differs from the recorded one, with a sentence that has both keys."""
    declared = declared_keys(plan)
    for stage in plan.keyed:
        for number, (before, now) in enumerate(zip(stored.get(stage.name, ()), declared[stage.name], strict=False)):
            if before is not None and now is not None and before.differs(now):
                which = f", input {number + 1}" if len(stage.takes) > 1 else ""
                term = _term(stage)
                sentence = (
                    f"operator '{stage.name}'{which}: its state is stored by the {term} {before}, and the code has the {term} "
                    f"{now}: nothing that is stored would be found."
                )
                yield stage.name, sentence


def check_sink_keys(config: JobConfig, log: CheckpointLog, now: SinkTables) -> None:
    """Raise `ConfigError` for sinks whose primary key has changed since they were written."""
    if problems := [*sink_key_problems(config, log, now)]:
        raise ConfigError("\n".join(problems))


def sink_key_problems(config: JobConfig, log: CheckpointLog, now: SinkTables) -> Iterator[str]:
    """Yield a sentence for each sink whose primary key has changed since it was written."""
    stored = (None if log.last is None else log.sink_tables(log.last)) or {}
    for name, table in now.items():
        if name in stored and stored[name].key != table.key and _was_written(log, name):
            yield (
                f"sink '{name}' at {config.sinks[name].path} {_written(stored[name], 'was')}, and the pipeline has it "
                f"{_written(table, '')}: rows of the one key are not found by the other. Nothing was changed. Take the change "
                f"back. Or give the sink a new path ({config.where(f'sinks.{name}.path')}) and fill it from the beginning: "
                f"headrace restore {config.job} --to 0 --why ..., and the next run takes in all input again."
            )


def _term(stage: KeyedStage) -> str:
    if isinstance(stage.operator, Lag):
        return "partition_by"
    return "primary_key" if isinstance(stage.operator, UpsertMaterialize) else "key"


def _written(table: SinkTable, verb: str) -> str:
    how = f"merged by the primary key {', '.join(table.key)}" if table.key else "only appended to"
    return f"{verb} {how}".strip()


def _was_written(log: CheckpointLog, sink: str) -> bool:
    return any(checkpoint.outputs.get(sink) for checkpoint in log.lineage.newest_first())
