"""Which connections stay when there are too many: those of strangers go first, the oldest of them before the others.

A connection is a stranger's until a request over it came with a good token. Strangers have half of the places, so that
they take none from clients whose token is good. A client that has just connected counts as one, too. It loses its place
only if that many others connect before its request is there.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CONNECTIONS_MAX = 4096
CONNECTIONS_MIN = 64
FILES_KEPT = 256  #: of those that the process may have open, for the lake, the ledger and logs


@dataclass(slots=True)
class _Place:
    connection: socket.socket
    works: Callable[[], bool] = lambda: False  #: whether a request is being answered


class Places:
    """The connections of one server; used on its event loop alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._strangers: dict[int, _Place] = {}  #: by file descriptor, the oldest first; some may be closed already
        self._known: dict[int, _Place] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def admit(self, connection: socket.socket) -> None:
        """One that was just accepted; before TLS, if there is any. Others may be ended for it."""
        number = connection.fileno()
        self.forget(number)  # the system gives numbers of closed ones again
        self._strangers[number] = _Place(connection)
        while len(self._strangers) > self._most // 2 or len(self) > self._most:
            self._end(next(number for number, place in self._strangers.items() if not place.works()))

    def mark_http(self, number: int, works: Callable[[], bool]) -> None:
        """It speaks HTTP, and *works* says whether it waits for an answer: then it is not ended."""
        if number in self._strangers:
            self._strangers[number].works = works

    def mark_known(self, number: int) -> None:
        """A request over it came with a good token."""
        if number in self._strangers:
            self._known[number] = self._strangers.pop(number)

    def forget(self, number: int) -> None:
        """It is closed, or was before."""
        self._strangers.pop(number, None)
        self._known.pop(number, None)

    def _end(self, number: int) -> None:
        """The event loop sees the end of the stream, and closes it."""
        place = self._strangers.pop(number)
        with suppress(OSError):  # it is closed already, by the client or here
            place.connection.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket that shows each connection to `admit`."""

    admit: Callable[[socket.socket], None] = staticmethod(lambda _: None)

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self.admit(connection)
        return connection, address


def connections_max() -> int:
    """How many connections the server takes, within the open files that the system lets the process have."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, files - FILES_KEPT))
