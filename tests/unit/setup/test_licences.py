"""`setup/licences.py`: a locked runtime dependency with another licence than the allowed ones is refused."""

from __future__ import annotations

import runpy
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from tests.jobs.home import PROJECT

SCRIPT = runpy.run_path(str(PROJECT / "setup" / "licences.py"))
Licensed = SCRIPT["Licensed"]


def package(folder: Path, *lines: str) -> Distribution:
    """Return a package with these lines of metadata."""
    info = folder / "some-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(("Name: some", "Version: 1", *lines)))
    return Distribution.at(info)


@pytest.mark.slow
def test_runtime_dependencies_have_allowed_licences():
    packages = SCRIPT["locked_packages"]()
    assert [package for package in packages if package.is_runtime and not package.is_allowed] == []
    assert {"airflow", "apache-airflow", "deltalake", "rocksdict"} & {
        package.name for package in packages if package.is_runtime
    } == {"apache-airflow", "deltalake", "rocksdict"}


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (
            ("License-Expression: MIT OR Apache-2.0", "Classifier: License :: OSI Approved :: BSD License"),
            "MIT OR Apache-2.0",
        ),
        (("License: see below", "Classifier: License :: OSI Approved :: MIT License"), "MIT"),
        (("License: Apache Software License",), "Apache-2.0"),
        (("License: Our Own",), "Our Own"),
        ((), ""),
    ],
)
def test_licence_comes_from_the_metadata(tmp_path, lines, licence):
    assert SCRIPT["licence_of"](package(tmp_path, *lines)) == licence


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("(MIT OR Apache-2.0) AND ISC", True),
        ("(MIT OR GPL-3.0-only) AND ISC", False),
        ("(MIT OR GPL-3.0-only) AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("Our Own", False),
        ("", False),
    ],
)
def test_all_parts_or_one_choice_are_allowed(licence, allowed):
    assert Licensed("some", "1", licence, is_runtime=True).is_allowed is allowed
