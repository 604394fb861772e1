"""Messages between a process and those of its queries: pickles and rows of Arrow over a Unix socket.

Both ends are this program, so a pickle is no risk. A message has its length first: a process that dies in the middle
of one is noticed, and never taken for the end of the rows.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

_HEAD = struct.Struct("!BQ")
_PICKLE, _ROWS = 0, 1
PIECE_BYTES = 4 << 20  #: of rows, and more only for one large row; clients of Flight take messages of 16 MiB and more
_LOOK_MS = 500  #: Python acts on a signal between two waits: one that comes just before a wait would not end it


class Message(NamedTuple):
    """What came: an object or a `RecordBatch`, and open sockets that were sent along."""

    said: Any
    files: Sequence[int]


class Line:
    """One end of a connection. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, said: object, *, files: Sequence[int] = ()) -> None:
        """Raises: OSError when the other end is gone."""
        self._put(_PICKLE, pickle.dumps(said), files)

    def send_rows(self, batch: pa.RecordBatch) -> None:
        """Send *batch* in pieces that take little memory. Raises: OSError when the other end is gone."""
        count = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
        for low in range(0, batch.num_rows, count):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:  # with its dictionaries
                writer.write_batch(batch.slice(low, count))
            self._put(_ROWS, sink.getvalue(), ())

    def receive(self) -> Message:
        """The next message. Raises: EOFError when the other end is gone."""
        while not self._poll.poll(_LOOK_MS):
            continue
        try:
            head, files, _, _ = socket.recv_fds(self.socket, _HEAD.size, 1)
            while 0 < len(head) < _HEAD.size and (more := self.socket.recv(_HEAD.size - len(head))):
                head += more
            if len(head) < _HEAD.size:
                raise EOFError
            kind, size = _HEAD.unpack(head)
            body = pa.allocate_buffer(size)
            left = memoryview(body)
            while left and (count := self.socket.recv_into(left)):
                left = left[count:]
        except OSError as error:
            raise EOFError from error
        if left:
            raise EOFError
        if kind == _PICKLE:
            return Message(pickle.loads(body), files)
        with pa.ipc.open_stream(body) as reader:
            return Message(reader.read_next_batch(), files)

    @property
    def has_come(self) -> bool:
        """Whether there is a message, or the other end is gone."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self.socket.close()

    def _put(self, kind: int, body: Any, files: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self.socket, [_HEAD.pack(kind, len(body))], files)
            self.socket.sendall(body)
