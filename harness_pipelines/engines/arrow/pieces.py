"""Rows dealt out to pieces, each of which is written as one file in the order of some columns; memory is bounded.

Rows come in any order, some at a time. What is more than `HELD_BYTES_MAX` together goes to files of this machine, which
are mapped into memory when a piece is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness_pipelines.errors import HarnessError, Recovery

HELD_BYTES_MAX = 256 * 2**20  #: as Arrow has them
TAKEN_BYTES = 16 * 2**20  #: of rows that are put in order at a time
Places = npt.NDArray[np.int64]


class NoRoomForRows(HarnessError):
    """Rows of a move do not fit into the folder for temporary files."""

    way_on = "make room there, or let TMPDIR name a folder on a larger disk"

    recovery = Recovery.REFRESH


class Pieces:
    """A context manager; its files go with it. Rows of a piece lie *by* some columns of whole numbers without NULL."""

    def __init__(self, count: int, *, by: Sequence[str], held_max: int = HELD_BYTES_MAX) -> None:
        self._by, self._held_max = tuple(by), held_max
        self._held: list[list[pa.Table]] = [[] for _ in range(count)]
        self._on_disk: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        self._bytes = 0  #: held
        self._folder: Path | None = None
        self._closing = ExitStack()

    def __len__(self) -> int:
        return len(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held, self._on_disk = [], []
        self._closing.close()

    def add(self, rows: pa.Table, piece: Places | int) -> None:
        """Deal out *rows*: all to one piece, or each to its own. Raises: NoRoomForRows."""
        if isinstance(piece, int):
            self._held[piece].append(rows)
        else:
            order = np.argsort(piece, kind="stable")
            starts = np.searchsorted(piece[order], np.arange(len(self) + 1))
            dealt = rows.take(pa.array(order))
            for one in np.flatnonzero(np.diff(starts)).tolist():
                self._held[one].append(dealt.slice(starts[one], starts[one + 1] - starts[one]))
        self._bytes += rows.nbytes
        if self._bytes > self._held_max:
            self._spill()

    def sorted(self, piece: int) -> Iterator[pa.Table]:
        """The rows of one piece in order, some at a time."""
        parts = [*(pa.Table.from_batches([batch]) for batch in self._on_disk[piece]), *self._held[piece]]
        if not parts:
            return
        rows = pa.concat_tables(parts)
        keys = [np.asarray(rows.column(name).to_numpy(), np.int64) for name in self._by]
        order = None if _is_ascending(keys) else np.lexsort(keys[::-1])
        step = max(1, TAKEN_BYTES * rows.num_rows // max(rows.nbytes, 1))
        for first in range(0, rows.num_rows, step):
            part = rows.slice(first, step)
            yield part if order is None else rows.take(pa.array(order[first : first + step]))

    def _spill(self) -> None:
        """Write what is held to one file, a batch per piece."""
        if self._folder is None:
            made = tempfile.TemporaryDirectory(prefix="harness-rows-")
            self._folder = Path(self._closing.enter_context(made))
        path = self._folder / f"{len(list(self._folder.iterdir()))}.arrow"
        filled = [number for number, tables in enumerate(self._held) if tables]
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, self._schema(filled)) as writer:
                for number in filled:
                    for batch in pa.concat_tables(self._held[number]).combine_chunks().to_batches():
                        writer.write_batch(batch)
        except OSError as error:
            where = f"rows could not be written to {self._folder}"
            raise NoRoomForRows(f"{where}: {error}; nothing was published") from error
        self._map(path, filled)

    def _schema(self, filled: Sequence[int]) -> pa.Schema:
        return self._held[filled[0]][0].schema

    def _map(self, path: Path, filled: Sequence[int]) -> None:
        reader: Any = pa.ipc.open_file(self._closing.enter_context(pa.memory_map(str(path))))
        number = 0
        for piece in filled:
            left = sum(rows.num_rows for rows in self._held[piece])
            self._held[piece] = []
            while left:
                batch = reader.get_batch(number)
                self._on_disk[piece].append(batch)
                left, number = left - batch.num_rows, number + 1
        self._bytes = 0


def _is_ascending(keys: Sequence[Places]) -> bool:
    """Whether rows lie in the order of *keys* already, the first of which counts most."""
    settled = np.zeros(max(len(keys[0]) - 1, 0), np.bool_)
    for key in keys:
        steps = np.diff(key)
        if np.any(~settled & (steps < 0)):
            return False
        settled |= steps > 0
    return True
