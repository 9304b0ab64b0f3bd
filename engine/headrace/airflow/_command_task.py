"""Tasks that run the command `headrace`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator

from headrace.airflow._environment import task_environment

_NOTHING: Mapping[str, str] = MappingProxyType({})


def command_task(
    task_id: str,
    *words: str,
    home: Path,
    timeout: timedelta,
    python: str | None = None,
    environment: Mapping[str, str] = _NOTHING,
    **options: Any,
) -> BashOperator:
    """Return a task that runs `headrace WORDS` on the jobs of `home`, in the environment of `python`.

    The shell sees `environment` as well. `options` are those of the operator.
    """
    return BashOperator(
        task_id=task_id,
        bash_command=" ".join(("headrace", *words)),
        env={**task_environment(home, python), **environment},
        append_env=True,
        execution_timeout=timeout,
        **options,
    )
