"""Code, input and settings of a branch: those of the job's file, but for what the branch has for itself.

The table `branches` has both what was named for the branch (`settings`) and all that its last run was computed with (`ran_with`).
Later runs and readers use the first. Promotion compares the second with the job's file: the file may have changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from headrace.commit.branches import Branch, Branches
from headrace.commit.log import CheckpointLog
from headrace.config import JobConfig, format_duration, with_settings
from headrace.errors import ConfigError

_RESULTS_DEPEND_ON: Final = ("pipeline", "mode", "max_parallelism", "watermark", "sources", "services", "async_io")
_NO_RESULT_DEPENDS_ON: Final = frozenset(
    {"max_files_per_batch", "max_rows_per_batch", "health", "rate", "concurrency", "capacity"}
)
_HIDDEN: Final = frozenset({"options", "url"})
"""Keys whose values may hold secrets: what `shown` returns of them is compared."""


def on_branch(config: JobConfig, name: str) -> JobConfig:
    """Return a job's configuration on a branch, with what the branch has for itself.

    Raises `ConfigError` when there is no open branch of the name, and where the job's file does not take the settings any more.
    """
    return config_of(config, Branches(config).get(name))


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
    """Raise `ConfigError` for a branch that is listed and was not made to the end: a run would begin a job of its own there."""
    if config.branch is not None and not CheckpointLog(config.job_folder, config.storage_options).checkpoints:
        msg = (
            f"branch '{config.branch}' of job '{config.job}' is not ready: the command that made it broke off, or is still at work. Nothing "
            f"was run. To finish it: headrace branch create {config.job} {config.branch}"
        )
        raise ConfigError(msg)


def record_run(config: JobConfig, run_id: str) -> None:
    """Record what a run of a branch is computed with, if the last run had something else. Nothing is done for the job itself.

    It is called while the run holds the branch. Raises `ConfigError` when the branch was dropped.
    """
    if config.branch is None:
        return
    branches = Branches(config.itself)
    recorded = branches.get(config.branch)
    current = replace(recorded, settings=config.settings, ran_with=dict(_values(config)), run_id=run_id)
    if replace(current, run_id=recorded.run_id) != recorded:
        branches.change(current)


def differences_to_file(config: JobConfig, branch: Branch) -> list[str]:
    """Return a sentence for each value that the job's file has today and the branch's last run had not, or the other way round.

    `config` is the job's, as loaded. Only values count that results depend on: code, sources, watermarks, services. A branch that never
    ran is compared by the settings that it has.
    """
    today = dict(_values(config))
    ran = dict(_values(config_of(config, branch))) if branch.ran_with is None else branch.ran_with
    return [
        f"branch '{branch.name}' ran {_shown(key, ran.get(key))}, and the job's file says {today.get(key, 'nothing of it')}"
        for key in sorted({*today, *ran})
        if today.get(key) != ran.get(key)
    ]


def _shown(key: str, value: str | None) -> str:
    return f"without {key}" if value is None else f"with {key} {value}"


def _values(config: JobConfig) -> Iterator[tuple[str, str]]:
    """Yield the values that results depend on and that are not the default, by dotted key, without secrets."""
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
