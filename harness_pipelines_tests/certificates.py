"""Certificates for tests: an authority that the test makes, good certificates, and each kind of bad one."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "localhost"
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, as PEM files: each alone, and both in one."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates; `root` is what its clients trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"harness test {name}")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, encipher_only=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, decipher_only=False,
        )  # fmt: skip
        made = (
            self._builder(self._name, self._key.public_key(), expired=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.root = folder / f"{name}.pem"
        self.root.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, host: str = HOST, expired: bool = False) -> Pair:
        """A pair for *host*, which clients log in with too; one of the loopback's address where *host* is ours."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == HOST:
            hosts.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        made = (
            self._builder(_named(name), key.public_key(), expired=expired)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(
            certificate=self._folder / f"{name}.crt",
            key=self._folder / f"{name}.key",
            both=self._folder / f"{name}.pem",
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        for path, text in ((pair.key, secret), (pair.both, secret + pair.certificate.read_bytes())):
            path.touch(mode=0o600)
            path.write_bytes(text)
        return pair

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, expired: bool) -> x509.CertificateBuilder:
        until = datetime.now(UTC) + (-_DAY if expired else _DAY)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 3 * _DAY)
            .not_valid_after(until)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
