"""PyIceberg's storage access; it records digests of writes and verifies reads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from harness_pipelines.drivers.file_notes import KNOWN, Notes
from harness_pipelines.drivers.files import opened
from harness_pipelines.drivers.object_stores.clients import filesystem
from harness_pipelines.drivers.object_stores.marks import create_mark, read_mark
from harness_pipelines.lakes.iceberg.parquet import data_files, tail_of
from harness_pipelines.protocol.lake.file_digests import DIGEST_BYTES, Digest
from harness_pipelines.spec.locations import local_path

DATA = ".parquet"
AT_ONCE = 8  #: files whose ends are read at once: a store far away answers slowly, but many at a time


class StoreIO(PyArrowFileIO):
    """PyIceberg's access by Arrow, with the one client that this process has for the store of each location.

    PyIceberg's own access keeps one client for a bucket, but warehouses in one bucket can have different settings.
    """

    def new_input(self, location: str) -> PyArrowFile:
        return self._file(location)

    def new_output(self, location: str) -> PyArrowFile:
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises: OSError."""
        system, path = opened(location if isinstance(location, str) else location.location)
        system.delete_file(path)

    def _file(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        # PyIceberg's local file system makes the folders of a new file.
        system = self.fs_by_scheme(scheme, netloc) if scheme == "file" else filesystem(location)
        return PyArrowFile(location, path, system)


class CheckedIO(FileIO):
    """Files of the lake. With *digests* it notes each metadata file, manifest list and manifest that it writes."""

    def __init__(self, inner: FileIO, digests: Notes | None = None) -> None:
        super().__init__(properties=inner.properties)
        self._inner, self.digests = inner, digests

    def new_input(self, location: str) -> InputFile:
        return _Input(self._inner.new_input(location))

    def new_output(self, location: str) -> OutputFile:
        output = self._inner.new_output(location)
        # What a data file ends with is read from it when it is whole.
        return output if self.digests is None or location.endswith(DATA) else _Output(output, self.digests)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._inner.delete(location)


def opened_io() -> CheckedIO:
    """What reads files of any place and notes nothing."""
    return CheckedIO(StoreIO())


def note_data_file(io: FileIO, path: str) -> None:
    """Remember what a data file that was just written ends with. Raises: OSError, pa.ArrowInvalid."""
    if isinstance(io, CheckedIO) and io.digests is not None:
        with io._inner.new_input(path).open() as stream:
            io.digests.add(path, tail_of(stream))


def note_data_files(io: FileIO, paths: Sequence[str]) -> None:
    """Remember what data files that were just written end with. Raises: as `note_data_file`."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="note") as pool:
        list(pool.map(partial(note_data_file, io), paths))


def write_data_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> list[DataFile]:
    """Write *rows* to files of the table that *metadata* describes, of which nobody knows yet."""
    written = data_files(metadata, rows, io)
    for file in written:
        note_data_file(io, file.file_path)
    return written


class _Input(InputFile):
    def __init__(self, inner: InputFile) -> None:
        super().__init__(inner.location)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def open(self, seekable: bool = True) -> InputStream:
        """Open the file and compare it with its note. Raises: FileDamaged."""
        known = KNOWN.of(self.location)
        stream: Any = self._inner.open()
        if known is None:
            return stream  # type: ignore[no-any-return]
        size = stream.size()
        stream.seek(max(size - known.tail, 0))
        tail = stream.read()
        known.check(self.location, size=size, tail=tail)
        if known.tail == size:  # all of it was read
            stream.close()
            return pa.BufferReader(tail)  # type: ignore[no-any-return]
        stream.seek(0)
        return stream  # type: ignore[no-any-return]


class _Output(OutputFile):
    def __init__(self, inner: OutputFile, digests: Notes) -> None:
        super().__init__(inner.location)
        self._inner, self._digests = inner, digests

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return _Input(self._inner.to_input_file())

    def create(self, overwrite: bool = False) -> OutputStream:
        """In an object store the file is created by one conditional request, when it is closed.

        Arrow would ask by two requests whether it is there, of which one is a listing, and then write over one that
        came in between.
        """
        is_local = local_path(self.location) is not None
        inner = self._inner.create(overwrite=overwrite) if is_local or overwrite else _Created(self.location)
        return _Writing(self.location, inner, self._digests)


class _Created(OutputStream):
    """A small file of an object store, which is there as a whole once it is closed, and was not there before."""

    def __init__(self, location: str) -> None:
        self._location, self._content, self._is_open = location, bytearray(), True

    def write(self, b: bytes) -> int:
        self._content += b
        return len(b)

    def tell(self) -> int:
        return len(self._content)

    def close(self) -> None:
        """Raises: FileExistsError, OSError, StoreRefused."""
        if not self._is_open:
            return
        self._is_open = False
        content = bytes(self._content)
        if not create_mark(self._location, content):  # after a lost answer it is our own that is there
            seen = read_mark(self._location)
            if seen is None or seen.content != content:
                raise FileExistsError(f"{self._location} is there, and has another content; nothing was written")

    def __enter__(self) -> _Created:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


class _Writing(OutputStream):
    """Hands on what is written, and makes the digest of it."""

    def __init__(self, path: str, inner: OutputStream, digests: Notes) -> None:
        self._path, self._inner, self._digests = path, inner, digests
        self._hash, self._bytes, self._is_open = blake2b(digest_size=DIGEST_BYTES), 0, True

    def write(self, b: bytes) -> int:
        self._hash.update(b)
        self._bytes += len(b)
        return self._inner.write(b)

    def tell(self) -> int:
        return self._bytes

    def close(self) -> None:
        self._inner.close()
        if self._is_open:
            self._is_open = False
            self._digests.add(self._path, Digest(self._bytes, self._bytes, self._hash.digest()))

    def __enter__(self) -> _Writing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # nobody notes half of a file
            self._inner.__exit__(kind, error, trace)
