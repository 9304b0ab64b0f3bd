"""--pipeline, --source and --set: what a branch has otherwise than its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from headrace.config import JobConfig

# Typer reads these at run time, and does not know `str | None` in an alias.
OtherPipeline = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--pipeline", metavar="MODULE:NAME", help="Of a branch: the pipeline, instead of the job's."),
]
OtherSource = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--source", metavar="NAME=PATH", help="Of a branch: where a source is read from; may be repeated."),
]
Setting = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Of a branch: a value instead of that in the job's file, as run.budget=5m; may be repeated.",
    ),
]


def named_settings(
    config: JobConfig, pipeline: str | None, sources: list[str] | None, settings: list[str] | None
) -> dict[str, str]:
    """Return what the options name: YAML, by dotted key. Raises `ConfigError` for texts of another form and unknown sources."""
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


def with_named(
    config: JobConfig, pipeline: str | None, sources: list[str] | None, settings: list[str] | None
) -> JobConfig:
    """Return a branch's configuration with what the options name, besides what the branch has already.

    Raises `ConfigError` where the configuration is that of the job itself, and for what a branch cannot have.
    """
    from headrace.config import with_settings
    from headrace.errors import ConfigError

    named = named_settings(config, pipeline, sources, settings)
    if named and config.branch is None:
        msg = (
            "--pipeline, --source and --set need --branch: what the job itself runs and reads is in its file. Nothing was run. "
            f"'headrace branch create {config.job} NAME' makes a branch."
        )
        raise ConfigError(msg)
    return with_settings(config, {**config.settings, **named})


def _as_yaml(path: str) -> str:
    """Return a path as YAML: in quotes, since it may contain characters that mean something there."""
    from pathlib import Path

    import msgspec

    place = path if "://" in path else str(Path(path).absolute())
    return msgspec.json.encode(place).decode()
