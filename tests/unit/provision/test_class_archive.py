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
    return sorted(jars_folder(archive.home).iterdir())


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
    archive.make()
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
    assert archive.submit_options("-XX:SharedArchiveFile=mine.jsa") == "-XX:SharedArchiveFile=mine.jsa"


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
