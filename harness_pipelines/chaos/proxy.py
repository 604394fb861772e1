"""TCP proxies in front of the services: they go down, come back, cut in the middle of a message, and lose answers.

Bounded: a proxy ends with `close`, and no wait in it is longer than some seconds.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from harness_pipelines.drivers.postgres_address import at_port, place_of

#: Receives each piece that a client sends; True cuts the connection instead of forwarding the piece.
Watch = Callable[[bytes], bool]


class TcpProxy:
    """Forwards connections to one address; the port that it listens on stays the same for its life."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._countdown: int | None = None
        self._flows = threading.Event()
        self._flows.set()
        self.cuts = 0  #: connections that were cut in the middle of what they carried
        self.port = 0
        self.up()

    def up(self) -> None:
        """Let connections through."""
        if self._listener is not None:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Cut all connections and refuse new ones."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
            listener.close()
        self.cut()
        self._flows.set()

    def lead_to(self, host: str, port: int) -> None:
        """New connections go to another server."""
        self._target = (host, port)

    def freeze(self) -> None:
        """Keep all connections, take new ones, and carry nothing: a server that hangs. Ends with `down` alone."""
        self._flows.clear()

    def cut(self) -> None:
        """Cut all connections; new ones are let through."""
        with self._lock:
            cut, self._open = self._open, []
        for one in cut:
            end_socket(one)

    def cut_after(self, count: int) -> None:
        """Cut the connection over which, in whichever direction, the *count*-th byte from now on goes.

        The bytes before it are delivered, so its reader is left with a part of a message.
        """
        with self._lock:
            self._countdown = count

    def disarm(self) -> None:
        """Cancel a `cut_after` whose byte did not come."""
        with self._lock:
            self._countdown = None

    @property
    def is_armed(self) -> bool:
        """Whether a `cut_after` still waits for its byte."""
        return self._countdown is not None

    def close(self) -> None:
        self.down()

    # -- for proxies that understand what they carry ----------------------------------------------------------

    def watch(self) -> Watch | None:
        """The watch for the requests of a new connection, if there is one."""
        return None

    def passed_on(self, data: bytes) -> bytes:
        """What the server gets of the request *data*."""
        return data

    def cut_here(self, *, client: socket.socket, server: socket.socket, data: bytes) -> None:
        """Cut the connection if a watch chooses its request *data*."""
        self.forget(client, server)
        end_socket(client)
        end_socket(server)

    def forget(self, *ends: socket.socket) -> None:
        """Leave these out of later cuts."""
        with self._lock:
            self._open = [one for one in self._open if one not in ends]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:  # the service is away: so is its proxy, until it is back
                end_socket(client)
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open += [client, server]
            for source, sink, watch in ((client, server, self.watch()), (server, client, None)):
                threading.Thread(target=self._pump, args=(source, sink, watch, source is client), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, watch: Watch | None, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                data = self.passed_on(data) if asks else data
                if watch is not None and watch(data):
                    self.cut_here(client=source, server=sink, data=data)
                    return
                whole = self._counted(data)
                sink.sendall(data[:whole])
                if whole < len(data):
                    break
        self.forget(source, sink)
        end_socket(source)
        end_socket(sink)

    def _counted(self, data: bytes) -> int:
        """How much of *data* may pass: less than all of it only where the connection is to be cut."""
        if self._countdown is None:
            return len(data)
        with self._lock:
            if self._countdown is None or self._countdown > len(data):
                if self._countdown is not None:
                    self._countdown -= len(data)
                return len(data)
            whole, self._countdown = self._countdown - 1, None
            self.cuts += 1
            return whole


class PostgresProxy(TcpProxy):
    """A proxy in front of Postgres that can lose the answer of a chosen COMMIT."""

    def __init__(self, dsn: str) -> None:
        self._marker: bytes | None = None
        self._forwards_commit = True
        super().__init__(*place_of(dsn))
        self.dsn = at_port(dsn, self.port)

    def cut_commit_after(self, marker: bytes, *, forwards_commit: bool) -> None:
        """Cut the next connection at the COMMIT of a transaction in which it sent *marker*.

        With *forwards_commit* Postgres commits and only its answer is lost, else the COMMIT itself is lost.
        """
        self._forwards_commit, self._marker = forwards_commit, marker

    def watch(self) -> Watch:
        """Tells of each piece that a client sends whether it holds the COMMIT that is to be cut."""
        seen = False
        before = b""

        def holds_commit(data: bytes) -> bool:
            nonlocal seen, before
            marker, text = self._marker, before[-200:] + data
            before = data
            if marker is None:
                seen = False
                return False
            seen = seen or marker in text
            if seen and b"COMMIT" in data:
                self._marker = None
                return True
            return False

        return holds_commit

    def cut_here(self, *, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self.cuts += 1
        if not self._forwards_commit:
            super().cut_here(client=client, server=server, data=data)
            return
        self.forget(client, server)
        # Nothing reaches the client from here on: the pump of the answers ends when it tries.
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
            server.sendall(data)


def end_socket(one: socket.socket) -> None:
    """Shut *one* down in both directions and close it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
