"""The keys of immutable files in order, in bounded memory and then in a temporary folder."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.protocol.key_hashes import Keys, in_order

ROW_BYTES = 24  #: of one row in an index
INDEX_BYTES_MAX = 256 * 2**20  #: in memory: eleven million rows
SPILLED_BYTES_MAX = 4 * 2**30  #: in the temporary folder
_DTYPES = (np.dtype(np.uint64), np.dtype(np.uint64), np.dtype(np.uint32), np.dtype(np.int32))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyIndex:
    """All rows of one file, by their keys."""

    keys: Keys  #: in order
    places: NDArray[np.uint32]  #: of the rows in their file
    partitions: NDArray[np.int32]

    @classmethod
    def of(cls, keys: Keys, partitions: NDArray[Any]) -> KeyIndex:
        """Of the rows of a file, from its first to its last."""
        order = in_order(keys)
        return cls(
            keys=np.ascontiguousarray(keys[:, order]),
            places=order.astype(np.uint32),
            partitions=partitions[order].astype(np.int32),
        )

    @property
    def nbytes(self) -> int:
        return ROW_BYTES * len(self.places)

    def spilled(self, folder: str | None) -> KeyIndex:
        """The same in a file of *folder* without a name, which goes with this process. Raises: OSError."""
        count = len(self.places)
        if not count:
            return self
        with tempfile.TemporaryFile(dir=folder, prefix="harness-keys-") as file:
            for column in (*self.keys, self.places, self.partitions):
                file.write(np.ascontiguousarray(column).tobytes())
            file.flush()
            starts = np.cumsum([0, *(count * kind.itemsize for kind in _DTYPES)])
            keys = np.memmap(file, np.uint64, "r", shape=(2, count))
            places = np.memmap(file, np.uint32, "r", offset=int(starts[2]), shape=(count,))
            partitions = np.memmap(file, np.int32, "r", offset=int(starts[3]), shape=(count,))
        return KeyIndex(keys=keys, places=places, partitions=partitions)


class KeyIndexes:
    """Indexes by the path of their file, which never changes. Thread-safe.

    What was used least goes from memory to *folder* (None: the usual one), and from there away.
    """

    def __init__(
        self, *, bytes_max: int = INDEX_BYTES_MAX, spilled_max: int = SPILLED_BYTES_MAX, folder: str | None = None
    ) -> None:
        self._rooms = (_Room(bytes_max), _Room(spilled_max))
        self._folder, self._lock = folder, Lock()
        self.bytes_max = bytes_max + spilled_max

    def get(self, path: str, make: Callable[[], KeyIndex]) -> KeyIndex:
        """The index of a file, made (outside the lock, perhaps twice) when it is not known. Raises: OSError."""
        with self._lock:
            for room in self._rooms:
                if (found := room.get(path)) is not None:
                    return found
        made = make()
        with self._lock:
            pushed = self._rooms[0].put(path, made)
        for other, index in pushed:
            spilled = index.spilled(self._folder)
            with self._lock:
                self._rooms[1].put(other, spilled)
        return made

    @property
    def held(self) -> tuple[int, int]:
        """Bytes in memory, and in the folder."""
        return self._rooms[0].bytes, self._rooms[1].bytes


class _Room:
    """Indexes up to a number of bytes; the one that was used least goes first."""

    def __init__(self, bytes_max: int) -> None:
        self._max, self.bytes = bytes_max, 0
        self._known: OrderedDict[str, KeyIndex] = OrderedDict()

    def get(self, path: str) -> KeyIndex | None:
        found = self._known.get(path)
        if found is not None:
            self._known.move_to_end(path)
        return found

    def put(self, path: str, index: KeyIndex) -> list[tuple[str, KeyIndex]]:
        """Take in *index*, and return what has no room any more."""
        if path in self._known:
            return []
        self._known[path], self.bytes = index, self.bytes + index.nbytes
        gone = []
        while self.bytes > self._max:
            one = self._known.popitem(last=False)
            self.bytes -= one[1].nbytes
            gone.append(one)
        return gone
