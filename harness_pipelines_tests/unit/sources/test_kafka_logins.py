"""A broker that ends in the middle of a login is away; it refused nothing."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError

from harness_pipelines.ports.errors import KafkaLoginFailed, KafkaUnreachable
from harness_pipelines.sources.kafka.client import KafkaClient, KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog

TIMEOUTS = KafkaTimeouts(request_s=1.0)
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": "p",
}
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
CALLED = "sasl_plaintext://h:1/1: SASL SCRAM-SHA-512 mechanism handshake failed: "


def _answer(key: int, version: int) -> bytes:
    """What a broker says to a question, in the oldest form of each."""
    if key == SASL_HANDSHAKE:
        return struct.pack(">hih", 0, 1, len("SCRAM-SHA-512")) + b"SCRAM-SHA-512"
    keys = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
    ranges = b"".join(struct.pack(">hhh", each, 0, 1 if each != API_VERSIONS else 0) for each in keys)
    unsupported = 35
    return struct.pack(">hi", unsupported if version else 0, len(keys)) + ranges


@pytest.fixture
def ends_at() -> Iterator[Callable[[int], str]]:
    """A function that starts a broker, which ends each connection when it is asked a question of one kind."""
    servers: list[tuple[socket.socket, threading.Thread]] = []

    def start(last: int) -> str:
        server = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                with taken, suppress(OSError):  # a client may hang up, or say nothing
                    taken.settimeout(10.0)
                    while (asked := taken.recv(65536)) and (key := struct.unpack(">h", asked[4:6])[0]) != last:
                        answer = asked[8:12] + _answer(key, version=struct.unpack(">h", asked[6:8])[0])
                        taken.sendall(struct.pack(">i", len(answer)) + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        servers.append((server, thread))
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server, thread in servers:
        server.shutdown(socket.SHUT_RDWR)  # ends `accept`
        server.close()
        thread.join()


@pytest.mark.parametrize("last", [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE])
def test_a_broker_that_ends_in_the_middle_of_a_login_is_away(ends_at: Callable[[int], str], last: int) -> None:
    log = KafkaLog(ends_at(last), SASL, timeouts=TIMEOUTS)
    with pytest.raises(KafkaUnreachable):
        log.describe("orders")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (f"{CALLED}Local: Broker transport failure: broker's supported mechanisms: (n/a)", KafkaUnreachable),
        (f"{CALLED}Local: Timed out: broker's supported mechanisms: (n/a)", KafkaUnreachable),
        (
            "SASL authentication error: SaslAuthenticateRequest failed: Local: Broker transport failure",
            KafkaUnreachable,
        ),
        (f"{CALLED}Broker: Unsupported SASL mechanism: broker's supported mechanisms: PLAIN", KafkaLoginFailed),
        ("SASL authentication error: Authentication failed during authentication", KafkaLoginFailed),
    ],
)
def test_the_words_of_the_client_tell_a_refusal_from_a_lost_connection(words: str, error: type[Exception]) -> None:
    client = KafkaClient("h:1", SASL, timeouts=TIMEOUTS)
    found = client.translate(KafkaError(KafkaError._AUTHENTICATION, words), topic="orders", doing="reading")
    assert type(found) is error
