"""Take option values that need no conversion as they are given. Typer sends each one through pydantic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer import core

_PLAIN = (str, int, bool)


def keep_given_values() -> None:
    """Make Typer convert a value only if it has another type than its parameter declares, in this process.

    Typer asks pydantic about all values, also about options that are left out. The import of pydantic alone takes 0.1 s of
    CPU, as long as `headrace --help`. Does nothing with releases of Typer that convert values in other ways.
    """
    parameter: Any = getattr(core, "_TyperParameter", None)
    if parameter is None or not hasattr(parameter, "get_runtime_param"):
        return
    converter_of = parameter.get_runtime_param
    if converter_of.__module__ != __name__:
        parameter.get_runtime_param = lambda parameter: _GivenValues(lambda: converter_of(parameter))


class _GivenValues:
    """Converter of a parameter that asks Typer's own one only if there is something to convert."""

    def __init__(self, converter: Callable[[], Any]) -> None:
        self._converter = converter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; called by Typer for each parameter of a command."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        declared = param.type_descriptor
        if (
            declared.annotation in _PLAIN
            and type(value) is declared.annotation
            and declared.parameter_info.parser is None
        ):
            return value
        return self._converter().coerce(value, param=param, ctx=ctx)
