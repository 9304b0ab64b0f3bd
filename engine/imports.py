"""Why a module of user code could not be imported, for whoever wrote it."""

from __future__ import annotations


def why_not_imported(name: str, error: Exception) -> str:
    """What `error` says, which importing the module `name` has raised, and where in user code."""
    import traceback

    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module '{error.name}' in the job's home folder or the environment"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__}: {error} ({frames[-1].filename}:{frames[-1].lineno})"
