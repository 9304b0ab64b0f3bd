"""Code and settings of a branch, and the reasons to refuse them.

Code, input and settings of a branch: values of its own, and those of the job's file for all others.

The table `branches` has the values given to the branch (`settings`), all values that its last run used (`ran_with`), and digests of
the code that it ran (`code`). Later runs and readers use `settings`. Promotion compares `ran_with` and `code` with the job's file and
code, which may have changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from headrace.config import JobConfig, format_duration, with_settings
from headrace.errors import ConfigError
from headrace.log.branches import Branch, Branches, EarlierRuns
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.plan.digests import code_digests, described_difference, loaded_code_digests
from headrace.plan.stages import Plan, waits_of
from headrace.tables.folder import JobFolder

_PIPELINE: Final = "pipeline"
_RESULTS_DEPEND_ON: Final = (_PIPELINE, "mode", "max_parallelism", "watermark", "sources", "services", "async_io")
_NO_RESULT_DEPENDS_ON: Final = frozenset(
    {
        "max_files_per_batch",
        "max_rows_per_batch",
        "health",
        "rate",
        "concurrency",
        "capacity",
        "keep_responses",
        "replay",
    }
)
_HIDDEN: Final = frozenset({"options", "registry", "url"})
"""Keys whose values may hold secrets: they are compared as `shown` prints them, without secrets."""

_RESULTS: Final = frozenset({Kind.BATCH, Kind.MIGRATION})
"""Kinds of checkpoints whose state depends on code and settings."""

_SHOWN: Final = 5


def on_branch(config: JobConfig, name: str) -> JobConfig:
    """Return a job's configuration on a branch, with the branch's own settings.

    Raises `ConfigError` when no open branch has the name, when the branch is half made, and when its settings no longer fit the job's file.
    """
    of_branch = config_of(config, Branches(config).get(name))
    check_forked(of_branch)
    return of_branch


def config_of(config: JobConfig, branch: Branch) -> JobConfig:
    """Return a job's configuration on one of its branches; see `on_branch`."""
    try:
        return with_settings(config, branch.settings).on_branch(branch.name)
    except ConfigError as error:
        msg = (
            f"branch '{branch.name}' has settings of its own that do not fit the job's file any more: {error}. Correct the file, or drop "
            f"the branch: headrace branch drop {config.job} {branch.name}"
        )
        raise ConfigError(msg) from error


def check_forked(config: JobConfig) -> None:
    """Raise `ConfigError` for a branch that is listed but not fully made: a run on it would start an empty job."""
    if config.branch is not None and not CheckpointLog(JobFolder.of(config)).checkpoints:
        msg = (
            f"branch '{config.branch}' of job '{config.job}' is not ready: the command that makes it was interrupted, or is still at work. Nothing "
            f"was run. To finish it: headrace branch create {config.job} {config.branch}"
        )
        raise ConfigError(msg)


def record_run(config: JobConfig, run_id: str, lineage: Sequence[Checkpoint]) -> None:
    """Record the code and settings of a branch's run if the last run had others. Does nothing for the job itself.

    A run calls it while it holds the branch, before it makes a checkpoint; `lineage` is the branch's. Raises `ConfigError` when the branch
    was dropped.
    """
    if config.branch is None:
        return
    branches = Branches(config.itself)
    recorded = branches.get(config.branch)
    current = replace(
        recorded,
        settings=config.settings,
        ran_with=dict(_values(config)),
        code=loaded_code_digests(config.code),
        run_id=run_id,
    )
    if replace(current, run_id=recorded.run_id) == recorded:
        return
    if (recorded.ran_with, recorded.code) != (current.ran_with, current.code):
        current = replace(current, earlier=_ended_runs(recorded, lineage))
    branches.change(current)


def _ended_runs(branch: Branch, lineage: Sequence[Checkpoint]) -> tuple[EarlierRuns, ...]:
    """Return the earlier runs of a branch once its last run is one of them: it has made the branch's last checkpoints."""
    until = branch.earlier[-1].until if branch.earlier else branch.fork_id
    head = lineage[-1].checkpoint_id
    if branch.ran_with is None or head <= until:
        return branch.earlier
    return (*branch.earlier, EarlierRuns(until=head, ran_with=branch.ran_with, code=branch.code))


def runs_in(branch: Branch, lineage: Sequence[Checkpoint]) -> list[EarlierRuns]:
    """Return the earlier runs of a branch that have made a result which is still on its `lineage`."""
    runs, begin = [], branch.fork_id
    for earlier in branch.earlier:
        if any(
            begin < checkpoint.checkpoint_id <= earlier.until for checkpoint in lineage if checkpoint.kind in _RESULTS
        ):
            runs.append(earlier)
        begin = earlier.until
    return runs


def differences_to_file(
    config: JobConfig, branch: Branch, lineage: Sequence[Checkpoint] = (), *, allow_other_code: bool = False
) -> list[str]:
    """Return a sentence for each value that differs between the job's file of today and the branch's runs.

    `config` is the job's, as loaded, `lineage` the branch's. Compares only values that results depend on: code, sources, watermarks,
    services. The last run counts, and each earlier one whose results are on the lineage; with `allow_other_code`, earlier runs may be of another
    pipeline. Of a branch that never ran, compares its settings.
    """
    today = dict(_values(config))
    ran = dict(_values(config_of(config, branch))) if branch.ran_with is None else branch.ran_with
    runs = [(f" up to checkpoint {run.until}", run.ran_with) for run in runs_in(branch, lineage)]
    if allow_other_code:
        runs = [(when, {**values, _PIPELINE: today[_PIPELINE]}) for when, values in runs]
    return [
        f"branch '{branch.name}' ran {_shown(key, values.get(key))}{when}, and the job's file says "
        f"{today.get(key, 'nothing about it')}"
        for when, values in [*runs, ("", ran)]
        for key in sorted({*today, *values})
        if today.get(key) != values.get(key)
    ]


def code_differences(config: JobConfig, branch: Branch, lineage: Sequence[Checkpoint] = ()) -> list[str]:
    """Return a clause for each file and package of the job's code that is not what the branch's runs had.

    `config` is the job's, `lineage` the branch's; runs count as in `differences_to_file`. Empty if the code cannot be compared (see
    `uncompared_code`), and if the branch ran another pipeline: then `differences_to_file` says so.
    """
    now = code_digests(config.code)
    if now is None:
        return []
    pipeline = dict(_values(config))[_PIPELINE]
    runs = [(run.ran_with, run.code) for run in runs_in(branch, lineage)]
    codes = [
        code
        for ran_with, code in [*runs, (branch.ran_with or {}, branch.code)]
        if code is not None and ran_with.get(_PIPELINE) == pipeline
    ]
    differences = (
        described_difference(name, code.get(name), now.get(name))
        for code in codes
        for name in sorted({*code, *now})
        if code.get(name) != now.get(name)
    )
    return [*dict.fromkeys(differences)]


def listed(differences: Sequence[str]) -> str:
    """Return the first differences for a message, and the number of the others."""
    more = len(differences) - _SHOWN
    return "; ".join([*differences[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def uncompared_code(config: JobConfig, branch: Branch) -> str | None:
    """Return a sentence if a promotion cannot compare the job's code with that of the branch's last run; else None."""
    if branch.code is None:
        return f"the code was not compared: branch '{branch.name}' was never run, or its last run could not read its own code"
    if code_digests(config.code) is None:
        return f"the code was not compared: the module of {config.pipeline} is no file on this machine, or py_files are elsewhere"
    return None


def _shown(key: str, value: str | None) -> str:
    return f"without {key}" if value is None else f"with {key} {value}"


def _values(config: JobConfig) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values that results depend on, without defaults and secrets."""
    for section in _RESULTS_DEPEND_ON:
        yield from _flat(section, getattr(config, section), config.home)
    for name, sink in config.sinks.items():
        yield f"sinks.{name}.mode", sink.mode


def _flat(key: str, value: Any, home: Path) -> Iterator[tuple[str, str]]:
    if isinstance(value, msgspec.Struct):
        defaults = {field.name: _default(field) for field in msgspec.structs.fields(value)}
        for name in value.__struct_fields__:
            own = getattr(value, name)
            if own != defaults[name] and name not in _NO_RESULT_DEPENDS_ON:
                yield from _flat(f"{key}.{name}", _without_secrets(value)[name] if name in _HIDDEN else own, home)
    elif isinstance(value, dict):
        for name, own in value.items():
            yield from _flat(f"{key}.{name}", own, home)
    else:
        yield key, _text(value, home)


def _without_secrets(section: Any) -> dict[str, Any]:
    shown: dict[str, Any] = section.shown()
    return shown


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _text(value: Any, home: Path) -> str:
    """Return a value as text. Paths in the project's folder are relative to it: the folder may be elsewhere on another machine."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, str):
        return value.removeprefix(f"{home}/")
    return msgspec.json.encode(value).decode()


def refuse_on_branch(config: JobConfig, what: str) -> None:
    """Raise `ConfigError` if `config` is that of a branch. `what` completes "cannot …": "erase a key"."""
    if config.branch is not None:
        msg = (
            f"branch '{config.branch}' of job '{config.job}' cannot {what}: its tables build on those of the job. Nothing was changed. "
            f"Do it with the job itself (without --branch), or drop the branch."
        )
        raise ConfigError(msg)


def fork_anew(config: JobConfig) -> str:
    """Return how to replace a branch that no longer fits its job."""
    job, name = config.job, config.branch
    return f"Drop it, and begin it again: headrace branch drop {job} {name}, then headrace branch create {job} {name}."


def refuse_with_branches(config: JobConfig, what: str, done: str | None = None) -> None:
    """Raise `ConfigError` if the job has branches. `what` begins the message: "no key can be erased"; `done` is what is committed already."""
    state = "Nothing was changed." if done is None else f"{done}; run the command again afterwards."
    if names := [branch.name for branch in Branches(config).open]:
        msg = (
            f"{what} while job '{config.job}' has branches ({', '.join(names)}): they keep rows of their own, and those of their forks. "
            f"{state} Drop them first: headrace branch drop {config.job} {names[0]}"
        )
        raise ConfigError(msg)


def refuse_effects(config: JobConfig, plan: Plan) -> None:
    """Raise `ConfigError` if `config` is that of a branch, and an operator calls a service with effects outside.

    A service whose answers are kept is not called on the branch: see `headrace.run.services`.
    """
    if config.branch is None:
        return
    for wait in waits_of(plan):
        service = None if wait.service is None else config.services[wait.service]
        if service is not None and service.effects and not service.takes_responses:
            msg = (
                f"operator '{wait.name}' calls service '{wait.service}', which has effects outside (services.{wait.service}.effects), "
                f"and branch '{config.branch}' would repeat them. Nothing was run. If they do no harm, run it with --allow-effects."
            )
            raise ConfigError(msg)


def refuse_without_state(config: JobConfig, checkpoint: Checkpoint) -> None:
    """Raise `ConfigError` for a checkpoint without state in this lineage's tables: before a branch's fork, or brought by a promotion."""
    if checkpoint.has_state:
        return
    if config.branch is None:
        msg = (
            f"checkpoint {checkpoint.checkpoint_id} was made on a branch, and the promotion of that branch did not keep its state. "
            f"Ask for the checkpoint of the promotion, or a later one; 'headrace checkpoints {config.job}' lists all."
        )
    else:
        msg = (
            f"checkpoint {checkpoint.checkpoint_id} is before the fork of branch '{config.branch}', and its state is in the tables of "
            f"job '{config.job}' itself: ask without --branch"
        )
    raise ConfigError(msg)
