"""The archive of Spark's classes: made whole or not at all, and used only with the Java and the Spark that it was made from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import ServiceError
from headrace.provision.class_archive import ClassArchive
from headrace.provision.jars import jars_folder

SUBMIT = """#!/bin/sh
echo "$*: $SPARK_SUBMIT_OPTS" >> {calls}
case "$SPARK_SUBMIT_OPTS" in
*ArchiveClassesAtExit=*) [ -e {calls}.nothing ] || printf classes > "$(echo "${{SPARK_SUBMIT_OPTS##*ArchiveClassesAtExit=}}" | tr -d "'")" ;;
*) [ ! -e {calls}.unusable ] ;;
esac
"""
JAVA = """#!/bin/sh
echo "java $*" >> {calls}
for word do printf base > "${{word##*SharedArchiveFile=}}"; done
"""


@pytest.fixture
def calls(tmp_path) -> Path:
    """Return the file with the calls of the fake Java and Spark; beside it, `.nothing` and `.unusable` make them fail."""
    return tmp_path / "calls"


@pytest.fixture
def archive(tmp_path, java, calls) -> ClassArchive:
    """Return the archive of a fake Java, which has an archive of its own, and a fake Spark."""
    folder = java("java", 21)
    (folder / "lib/server").mkdir(parents=True)
    (folder / "lib/server/classes.jsa").touch()
    (folder / "bin/java").write_text(JAVA.format(calls=calls))
    spark = tmp_path / "spark"
    (spark / "bin").mkdir(parents=True)
    (spark / "jars").mkdir()
    (spark / "bin/spark-submit").write_text(SUBMIT.format(calls=calls))
    (spark / "bin/spark-submit").chmod(0o755)
    return ClassArchive(tmp_path / "project", folder, spark)


def files(archive: ClassArchive) -> list[Path]:
    """Return all files but the lock."""
    return sorted(file for file in jars_folder(archive.home).iterdir() if file.name != ".classes.lock")


def without_own(archive: ClassArchive) -> ClassArchive:
    (archive.java / "lib/server/classes.jsa").unlink()
    return archive


def test_archive_is_made_tried_and_used(archive, calls):
    assert archive.options() == ""
    archive.make()
    (file,) = files(archive)
    assert (file.read_text(), archive.size()) == ("classes", 7)
    assert archive.options().startswith(f"-XX:SharedArchiveFile={file} -Xshare:auto -Xlog:cds*=off -XX:Tier4")
    training, trial = calls.read_text().splitlines()
    assert "train.py: -XX:ArchiveClassesAtExit=" in training
    assert trial.startswith("--version: -XX:SharedArchiveFile=")
    assert f"-Xshare:on {archive.options().partition('=off ')[2]}" in trial


def test_java_without_its_own_archive_gets_one(archive, calls):
    without_own(archive).make()
    base, top = files(archive)
    assert (base.read_text(), top.read_text(), archive.size()) == ("base", "classes", 11)
    assert archive.options().startswith(f"-XX:SharedArchiveFile={base}:{top} ")
    assert calls.read_text().splitlines()[0].startswith("java -Xshare:dump -XX:SharedArchiveFile=")
    base.unlink()
    assert archive.options() == ""


@pytest.mark.parametrize("cut", [0, 6, 8])
def test_archive_of_another_size_is_not_used(archive, cut):
    archive.make()
    (file,) = files(archive)
    file.write_text("classes!"[:cut])
    assert (archive.options(), archive.size()) == ("", 0)


@pytest.mark.parametrize("changed", ["java", "release", "spark", "jars"])
def test_archive_fits_one_java_and_one_spark(archive, changed, tmp_path):
    archive.make()
    java, spark = archive.java, archive.spark
    if changed == "java":
        java = java.rename(tmp_path / "another java")
    elif changed == "release":
        (java / "release").write_text('JAVA_VERSION="21.0.2"\n')
    elif changed == "spark":
        spark = spark.rename(tmp_path / "another spark")
    else:
        os.utime(spark / "jars", (1, 1))
    other = ClassArchive(archive.home, java, spark)
    assert other.options() == ""
    other.make()
    assert len(files(other)) == 1  # the older one is gone
    assert other.options()


@pytest.mark.parametrize("failure", ["nothing", "unusable"])
@pytest.mark.parametrize("has_own", [True, False])
def test_failed_attempt_leaves_no_archive(archive, calls, failure, has_own):
    if not has_own:
        archive = ClassArchive(archive.home, without_own(archive).java, archive.spark)
    calls.with_name(f"calls.{failure}").touch()
    with pytest.raises(ServiceError, match=r"Java made no archive|exit code 1"):
        archive.make()
    assert archive.options() == ""
    assert not [file for file in files(archive) if file.name.startswith((".", "spark"))]


def test_own_options_of_the_environment_stay(archive):
    assert archive.submit_options("-Dmine=1") == "-Dmine=1"
    archive.make()
    assert archive.submit_options("-Dmine=1") == f"{archive.options()} -Dmine=1"
    assert archive.submit_options() == archive.options()


SHARING = [
    "-XX:SharedArchiveFile=my-classes.jsa",
    "-XX:ArchiveClassesAtExit=a.jsa",
    "-XX:AOTCache=a.aot",
    "-Xshare:off",
]


@pytest.mark.parametrize("option", SHARING)
def test_java_that_shares_classes_gets_no_archive(archive, option, monkeypatch):
    archive.make()
    assert archive.submit_options(f"-Dmine=1 {option}") == f"-Dmine=1 {option}"
    assert archive.submit_options("-Dmine=1", option) == "-Dmine=1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert archive.submit_options("-Dmine=1") == "-Dmine=1"


@pytest.mark.parametrize("folder", ["project", "a project"])
def test_options_of_an_earlier_archive_are_replaced(archive, tmp_path, folder):
    first = ClassArchive(tmp_path / folder, archive.java, archive.spark)
    first.make()
    given = first.submit_options("-Dmine=1")
    (archive.java / "release").write_text('JAVA_VERSION="21.0.2"\n')
    second = ClassArchive(first.home, archive.java, archive.spark)
    assert second.submit_options(given) == "-Dmine=1"
    second.make()
    assert second.submit_options(given) == f"{second.options()} -Dmine=1"
    assert second.submit_options(second.submit_options(given)) == second.submit_options(given)


def test_second_process_keeps_the_archive_of_the_first(archive, calls):
    archive.make()
    before = calls.read_text()
    archive.make()
    assert calls.read_text() == before


def test_leftovers_of_a_killed_attempt_are_removed(archive):
    leftover = jars_folder(archive.home) / ".classes-x" / "spark.jsa"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    archive.make()
    assert len(files(archive)) == 1


def test_spark_with_a_configuration_is_refused(archive, monkeypatch, tmp_path):
    """Java would refuse it behind the half minute."""
    (archive.spark / "conf").mkdir()
    (archive.spark / "conf/spark-defaults.conf").touch()
    with pytest.raises(ServiceError, match=r"spark/conf has files"):
        archive.make()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "absent"))
    archive.make()
    assert archive.options()


def test_unreadable_folder_has_no_archive(archive, monkeypatch):
    archive.make()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "glob", refuse)
    assert archive.options() == ""


def test_java_behind_a_link_is_the_same(archive, tmp_path):
    archive.make()
    (tmp_path / "link").symlink_to(tmp_path)
    linked = ClassArchive(archive.home, tmp_path / "link" / archive.java.name, archive.spark)
    assert linked.options() == archive.options()


def test_folder_with_a_space_is_quoted(archive, tmp_path):
    spaced = ClassArchive(tmp_path / "a project", archive.java, archive.spark)
    spaced.make()
    (file,) = files(spaced)
    assert spaced.options().startswith(f"-XX:SharedArchiveFile='{file}' ")


def test_folder_with_a_colon_is_refused(archive, tmp_path):
    """Java takes what is behind a colon for a second archive."""
    colon = ClassArchive(tmp_path / "a:b", archive.java, archive.spark)
    with pytest.raises(ServiceError, match=r"a:b/var/jars has a colon"):
        colon.make()
    assert colon.options() == ""
