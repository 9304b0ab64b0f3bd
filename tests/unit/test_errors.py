from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import errors
from headrace.errors import EngineBug, HeadraceError, UserFunctionError

KINDS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, HeadraceError) and value is not HeadraceError
]
OF_THEIR_OWN = [kind for kind in KINDS if "exit_code" in vars(kind)]
"""Kinds with an exit code of their own: others are special cases of these."""


def test_each_error_has_own_documented_exit_code():
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    documented = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}
    codes = {kind.__name__: kind.exit_code for kind in OF_THEIR_OWN}
    assert codes == documented
    assert len(set(codes.values())) == len(codes)


def test_exit_codes_differ_from_those_of_shells():
    #  126 and up: not executable, not found, killed by a signal
    assert all(0 < kind.exit_code < 126 for kind in KINDS)
    assert HeadraceError.exit_code == EngineBug.exit_code


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_names_its_actor(kind):
    assert len((kind.__doc__ or "").split()) > 5


def test_user_functions_error_names_the_place():
    error = UserFunctionError("delay", '"N14228"', '{"seq":1}', "Traceback: ...")
    assert (error.operator, error.key, error.record) == ("delay", '"N14228"', '{"seq":1}')
    assert str(error).splitlines() == [
        'user function failed in operator \'delay\', key "N14228", record {"seq":1}',
        "Traceback: ...",
        "Nothing of this micro-batch was committed. Correct the code, then run again: it gets the same input again.",
    ]


def test_user_error_without_key_names_none():
    assert str(UserFunctionError("weather", None, "open()", "...")).startswith(
        "user function failed in operator 'weather', record open()"
    )
