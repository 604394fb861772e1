"""What a broker can do, by the requests that it takes: Kafka names its release nowhere in its protocol.

`ApiVersions` is the one request that a broker answers before a login, and that the client library keeps to itself.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping

from harness_pipelines.sources.kafka.login import answered

ASK_S = 3.0
_METADATA, _FETCH, _API_VERSIONS = 3, 1, 18
_QUESTION = struct.pack(">hhih", _API_VERSIONS, 0, 1, -1)  # version 0, correlation 1, no client id
TOPIC_IDS_SINCE = 10  #: version of Metadata whose answer has topic ids
#: The newest version of Fetch that each release brought.
_RELEASES: tuple[tuple[int, str], ...] = (
    (18, "4.1"),
    (17, "3.9"),
    (16, "3.7"),
    (15, "3.5"),
    (13, "3.1"),
    (12, "2.7"),
)


def requests_of(bootstrap: str, *, tls: bool) -> Mapping[int, int] | None:
    """The newest version that the first broker of *bootstrap* to answer takes of each request, by the request's key.

    None: none of them said so. Nothing secret is sent, so nobody's certificate is looked at.
    """
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=ASK_S) as plain:
                plain.settimeout(ASK_S)
                with _wrapped(plain) if tls else plain as connection:
                    return _versions(answered(connection, _QUESTION))
        except (OSError, ValueError, struct.error):  # not there, or no broker
            continue
    return None


def release_of(requests: Mapping[int, int]) -> str:
    """The release for people, as ``4.1 or newer``."""
    fetch = requests.get(_FETCH, 0)
    at = next((i for i, (version, _) in enumerate(_RELEASES) if fetch >= version), None)
    if at is None:
        return f"older than {_RELEASES[-1][1]}"
    return (
        f"{_RELEASES[at][1]} or newer" if at == 0 else f"{_RELEASES[at][1]} or newer, older than {_RELEASES[at - 1][1]}"
    )


def has_topic_ids(requests: Mapping[int, int]) -> bool:
    """Return whether a topic that was created again is told from the old one, which exactly once needs."""
    return requests.get(_METADATA, 0) >= TOPIC_IDS_SINCE


def _wrapped(connection: socket.socket) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def _versions(answer: bytes) -> Mapping[int, int]:
    correlation, error, count = struct.unpack_from(">ihi", answer)
    if correlation != 1 or error:
        raise ValueError(f"an answer to {correlation} with error {error}")
    start = struct.calcsize(">ihi")
    rows = [struct.unpack_from(">hhh", answer, start + 6 * n) for n in range(count)]
    return {key: newest for key, _, newest in rows}
