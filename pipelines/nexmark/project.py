"""A separate project for the queries of Nexmark: their code, a job for each, and generated input."""

from __future__ import annotations

import shutil
from pathlib import Path

_PACKAGE = Path(__file__).parent
_REPOSITORY = _PACKAGE.parent.parent


def make_project(folder: Path) -> None:
    """Copy code, jobs and the cluster profile into `folder`, which then is a home of the `headrace` command.

    Input and results go into its folders `input` and `results`. Raises `FileExistsError` where `folder` has such a project.
    """
    shutil.copytree(_PACKAGE / "jobs", folder / "conf" / "jobs")
    (folder / "conf" / "clusters").mkdir()
    shutil.copy(_REPOSITORY / "conf" / "clusters" / "local.yaml", folder / "conf" / "clusters")
    code = folder / "pipelines"
    shutil.copytree(_PACKAGE, code / "nexmark", ignore=shutil.ignore_patterns("__pycache__", "jobs"))
    (code / "__init__.py").write_text('"""Pipelines of this project."""\n')
