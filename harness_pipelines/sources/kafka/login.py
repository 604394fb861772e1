"""Detect that a broker requires a login: without one it closes the connection without a reason.

The client library only sees a lost connection there, and would continue until its time limit.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

ASK_S = 2.0
_WORD_BYTES_MAX = 64 * 1024
_SASL_HANDSHAKE, _UNSUPPORTED_MECHANISM = 17, 33
_QUESTION = struct.pack(">hhih", _SASL_HANDSHAKE, 1, 0, -1) + struct.pack(">h1s", 1, b"?")  # of no such mechanism


def mechanisms_of(bootstrap: str) -> Sequence[str]:
    """How the first broker of *bootstrap* that answers wants its clients to log in; nothing where it wants no login."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=ASK_S) as connection:
                connection.settimeout(ASK_S)
                return _mechanisms(answered(connection, _QUESTION))
        except (OSError, ValueError, struct.error):  # not there, or no broker without TLS
            continue
    return ()


def answered(connection: socket.socket, question: bytes) -> bytes:
    """The broker's answer to *question*, without its length. Raises: OSError, ValueError, struct.error."""
    connection.sendall(struct.pack(">i", len(question)) + question)
    [length] = struct.unpack(">i", _exactly(connection, 4))
    if not 0 < length <= _WORD_BYTES_MAX:
        raise ValueError(f"an answer of {length} bytes")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise ValueError("the broker hung up")
        found += part
    return found


def _mechanisms(answer: bytes) -> Sequence[str]:
    _, error, count = struct.unpack_from(">ihi", answer)
    if error != _UNSUPPORTED_MECHANISM:  # one without a login answers that there is nothing to shake hands about
        return ()
    at, found = struct.calcsize(">ihi"), []
    for _ in range(count):
        [length] = struct.unpack_from(">h", answer, at)
        found.append(answer[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return tuple(found)
