"""The key store for Java, decoded by the rules of its format."""

from __future__ import annotations

import hashlib
import ssl
import struct

from headrace.provision.java import java_options

DER = [b"first certificate", b"second certificate"]


def entries(store: bytes) -> list[bytes]:
    """Return the certificates of a JKS store, after checking its checksum."""
    content, checksum = store[:-20], store[-20:]
    assert hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content).digest() == checksum  # noqa: S324
    magic, version, count = struct.unpack_from(">III", content)
    assert (magic, version) == (0xFEEDFEED, 2)
    certificates, at = [], 12
    for _ in range(count):
        (alias_length,) = struct.unpack_from(">H", content, at + 4)
        at += 4 + 2 + alias_length + 8 + 2 + len("X.509")
        (length,) = struct.unpack_from(">I", content, at)
        certificates.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    assert at == len(content)
    return certificates


def test_store_holds_the_machines_certificates(tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("# a comment\n" + "\n".join(map(ssl.DER_cert_to_PEM_cert, DER)))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    options = java_options(tmp_path)
    assert f"-Djavax.net.ssl.trustStore={tmp_path}/trusted.jks" in options
    assert entries((tmp_path / "trusted.jks").read_bytes()) == DER


def test_machine_without_certificates_needs_no_store(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert java_options(tmp_path) == ""
