"""Rejected TLS certificates: one named error for all servers, without retries.

OpenSSL, the JDK and each driver word a refusal in their own way. libpq and librdkafka keep the reason to themselves
("certificate verify failed"), so the server is then asked once more, by Python's TLS, which gives it.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from harness_pipelines.errors import HarnessError

ASK_S = 3.0  #: for the look at a certificate that was refused
_POSTGRES_STARTS_TLS = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_ALERT = r"alert:? (?:number )?"
_OURS = "it does not accept the certificate of this client"
_UNSAID = "its certificate is not accepted"

#: The first that fits counts: what a server thinks of us comes before what we think of it.
_WHY: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(words, re.IGNORECASE), why)
    for words, why in (
        (rf"{_ALERT}(?:certificate[ _]required|handshake[ _]failure)", "it asks for a certificate of this client"),
        (r"requires a valid client certificate", "it asks for a certificate of this client"),
        (rf"{_ALERT}certificate[ _]expired", f"{_OURS}: it has expired"),
        (rf"{_ALERT}certificate[ _]revoked", f"{_OURS}: it was revoked"),
        (rf"{_ALERT}unknown[ _]ca", f"{_OURS}: it does not trust who signed it"),
        (rf"{_ALERT}(?:bad[ _]certificate|certificate[ _]unknown|unsupported[ _]certificate|access[ _]denied)", _OURS),
        (r"certificate authentication failed", f"{_OURS} for this user"),
        (r"certificate has expired|CertificateExpired", "its certificate has expired"),
        (r"certificate is not yet valid|CertificateNotYetValid", "its certificate is not valid yet"),
        (r"certificate (?:is |was )?revoked", "its certificate was revoked"),
        (
            r"does not match host ?name|hostname mismatch|ip address mismatch|certificate is not valid for '|"
            r"no name matching|no subject alternative|hostname \S+ could not be verified",
            "its certificate is made for another host",
        ),
        (
            r"self[- ]signed certificate|unable to get (?:local )?issuer|unable to verify the first certificate|"
            r"unable to find valid certification path|trust anchor|signature failure|signature check failed",
            "its certificate is signed by an authority that is not trusted here",
        ),
        (
            r"root certificate file .* does not exist|could not (?:read|load|open) \S*\s?(?:root |private )?"
            r"(?:certificate|key) file|private key file .* has group or world access|"
            r"could not (?:load the private key|(?:open|read|find) (?:the )?SSL )|Failed to load PEM SSL|"
            r"certificate present, but not private key file|certificate does not match private key file",
            "a file of certificates cannot be used",
        ),
        (r"server does not support SSL, but SSL was required", "it does not speak TLS, which is asked for"),
        (r"certificate verify failed|certificate could not be verified|CertPathValidator|PKIX path", _UNSAID),
    )
)


class CertificateRefused(HarnessError):
    """One side of a TLS connection does not accept the certificate of the other; trying again does not help."""

    way_on = (
        "correct the certificate, its authority or the host name that the message gives. A worker reads the files "
        "again and continues by itself; start it again for other variables"
    )

    def __init__(self, server: str, *, why: str, said: str, settings: str) -> None:
        self.server, self.why = server, why
        super().__init__(f"{server} was not talked to over TLS: {why} ({said}); nothing was written. Check {settings}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPlace:
    """Where a server is, and whom its client trusts."""

    host: str
    port: int
    roots: str | None = None  #: a PEM file; None: those of the system
    is_postgres: bool = False  #: it speaks TLS on request


def why_refused(said: str, place: TlsPlace | None = None) -> str | None:
    """What *said*, the words of a client, means about a certificate; None: they are about something else.

    Where they hold no reason the server of *place* is asked for it.
    """
    why = next((why for words, why in _WHY if words.search(said)), None)
    if why is _UNSAID and place is not None:
        return next((known for words, known in _WHY if words.search(_look(place))), why)
    return why


def _look(place: TlsPlace) -> str:
    """Why the certificate of *place* is not accepted, in OpenSSL's words; nothing where that cannot be found out."""
    try:
        context = ssl.create_default_context(cafile=place.roots)
        with socket.create_connection((place.host, place.port), timeout=ASK_S) as plain:
            if place.is_postgres:
                plain.sendall(_POSTGRES_STARTS_TLS)
                if plain.recv(1) != b"S":
                    return ""
            with context.wrap_socket(plain, server_hostname=place.host):
                return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        return ""
