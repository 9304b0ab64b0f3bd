"""Certificates of an authority that nobody else trusts, for servers on this machine."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Certificates:
    """Files of PEM: the authority's certificate, and the key and the certificate of a server."""

    authority: Path
    server: Path

    def of_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server)
        return context


def certificates(folder: Path) -> Certificates:
    """Make both files in a folder."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority = _certificate("authority", keys[0], "authority", keys[0], is_authority=True)
    server = _certificate("server", keys[1], "authority", keys[0], is_authority=False)
    both = Certificates(folder / "authority.pem", folder / "server.pem")
    both.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    key = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.server.write_bytes(key + server.public_bytes(serialization.Encoding.PEM) + both.authority.read_bytes())
    return both


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    subject, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, part)]) for part in (name, issuer))
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        # Python 3.13 and newer refuse certificates without these.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(is_authority=is_authority), critical=True)
    )
    return builder.sign(signer, hashes.SHA256())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
