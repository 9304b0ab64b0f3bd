"""Options --pipeline, --source and --set: a branch's own code, input and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from headrace.config import JobConfig

# Typer reads these at run time, and does not support `str | None` in an alias.
OtherPipeline = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--pipeline", metavar="MODULE:NAME", help="With a branch: its pipeline instead of the job's."),
]
OtherSource = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--source", metavar="NAME=PATH", help="With a branch: the path of a source; may be repeated."),
]
Setting = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="With a branch: a value that overrides the job's file, as run.budget=5m; may be repeated.",
    ),
]


def named_settings(
    config: JobConfig, pipeline: str | None, sources: list[str] | None, settings: list[str] | None
) -> dict[str, str]:
    """Return the values of the options as YAML, by dotted key. Raises `ConfigError` for malformed values and unknown sources."""
    from headrace.errors import ConfigError

    named = {} if pipeline is None else {"pipeline": pipeline}
    for text in sources or []:
        name, separator, path = text.partition("=")
        if not separator or name not in config.sources or not path:
            msg = f"--source '{text}' is not SOURCE=PATH (sources: {', '.join(config.sources)}). Nothing was done."
            raise ConfigError(msg)
        named[f"sources.{name}.path"] = _as_yaml(path)
    for text in settings or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            msg = f"--set '{text}' is not KEY=VALUE, as in run.budget=5m. Nothing was done."
            raise ConfigError(msg)
        named[key] = value
    return named


def with_options(
    config: JobConfig, pipeline: str | None, sources: list[str] | None, settings: list[str] | None
) -> JobConfig:
    """Return a branch's configuration with the values of the options added to the branch's own.

    Raises `ConfigError` if the configuration is that of the job itself, and for values that a branch cannot have.
    """
    from headrace.config import with_settings
    from headrace.errors import ConfigError

    named = named_settings(config, pipeline, sources, settings)
    if named and config.branch is None:
        msg = (
            "--pipeline, --source and --set need --branch: the job itself uses the code and input of its file. Nothing was run. "
            f"'headrace branch create {config.job} NAME' makes a branch."
        )
        raise ConfigError(msg)
    return with_settings(config, {**config.settings, **named})


def _as_yaml(path: str) -> str:
    """Return a path as quoted YAML: it may contain characters with a meaning in YAML."""
    from pathlib import Path

    import msgspec

    place = path if "://" in path else str(Path(path).absolute())
    return msgspec.json.encode(place).decode()
