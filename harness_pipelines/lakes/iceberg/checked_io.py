"""PyIceberg's storage access; it records digests of writes and verifies reads.

In an object store each request costs time and money. So a small file is read whole by one request, and of metadata
files, manifest lists and manifests, which never change under their path, the content is kept: what this process wrote
or read is not read again. Local files are opened as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

from harness_pipelines.drivers.by_path import ByPath
from harness_pipelines.drivers.file_notes import KNOWN, FileNotes
from harness_pipelines.drivers.files import opened
from harness_pipelines.drivers.object_stores.clients import filesystem
from harness_pipelines.drivers.object_stores.deletion import delete
from harness_pipelines.drivers.object_stores.marks import absent, create_mark, read_end, read_mark
from harness_pipelines.lakes.iceberg.parquet import data_files, tail_of
from harness_pipelines.protocol.lake.file_digests import DIGEST_BYTES, Digest, digest_of
from harness_pipelines.spec.locations import local_path

DATA = ".parquet"
SMALL_BYTES = 2 * 2**20  #: a data file up to this size takes less time to read whole than two requests for parts of it
KEPT_BYTES = 256 * 2**20  #: of some hundred thousand data files
KEPT = ByPath(KEPT_BYTES)  #: what was read of files that never change, as it was written and as it was parsed
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
        where = location if isinstance(location, str) else location.location
        if _is_local(where):
            system, path = opened(where)
            system.delete_file(path)
        else:
            delete([where])

    def _file(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        # PyIceberg's local file system makes the folders of a new file.
        system = self.fs_by_scheme(scheme, netloc) if scheme == "file" else filesystem(location)
        return PyArrowFile(location, path, system)


class CheckedIO(FileIO):
    """Files of the lake. With *digests* it notes each metadata file, manifest list and manifest that it writes.

    *fresh*: a caller that judges what a file holds now reads it; nothing that is kept answers.
    """

    def __init__(self, inner: FileIO, digests: FileNotes | None = None, *, fresh: bool = False) -> None:
        super().__init__(properties=inner.properties)
        self._inner, self.digests, self._fresh = inner, digests, fresh

    def new_input(self, location: str) -> InputFile:
        return _Input(self._inner.new_input(location), fresh=self._fresh)

    def fresh(self) -> CheckedIO:
        """The same, which keeps nothing."""
        return CheckedIO(self._inner, self.digests, fresh=True)

    def new_output(self, location: str) -> OutputFile:
        output = self._inner.new_output(location)
        # What a data file ends with is read from it when it is whole.
        return output if self.digests is None or location.endswith(DATA) else _Output(output, self.digests)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._inner.delete(location)


def opened_io(*, fresh: bool = False) -> CheckedIO:
    """What reads files of any place and notes nothing. *fresh* as in `CheckedIO`."""
    return CheckedIO(StoreIO(), fresh=fresh)


def fresh(io: FileIO) -> FileIO:
    """*io*, as a caller takes it that judges what a file holds now."""
    return io.fresh() if isinstance(io, CheckedIO) else io


def compare(io: FileIO, path: str) -> None:
    """Compare a file with its note, reading no more than that takes. Raises: FileDamaged, OSError."""
    known = KNOWN.of(path)
    if known is None or _is_local(path) or not path.endswith(DATA):
        io.new_input(path).open().close()
        return
    tail, size = read_end(path, known.tail)
    known.check(path, size=size, tail=tail)


def note_data_file(io: FileIO, path: str, size: int) -> None:
    """Remember what a data file of *size* bytes that was just written ends with. Raises: OSError, pa.ArrowInvalid."""
    if isinstance(io, CheckedIO) and io.digests is not None:
        is_small = size <= SMALL_BYTES and not _is_local(path)
        with pa.BufferReader(_read(path)) if is_small else io._inner.new_input(path).open() as stream:
            io.digests.add(path, tail_of(stream))


def note_data_files(io: FileIO, files: Sequence[DataFile]) -> None:
    """Remember what data files that were just written end with. Raises: as `note_data_file`."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="note") as pool:
        list(pool.map(lambda file: note_data_file(io, file.file_path, file.file_size_in_bytes), files))


def note_files(io: FileIO, paths: Sequence[str]) -> None:
    """Remember the manifest lists and manifests that another writer of this attempt wrote. Raises: OSError."""
    if isinstance(io, CheckedIO) and io.digests is not None:
        for path in paths:
            with io.new_input(path).open() as stream:
                content = stream.read()
            io.digests.add(path, Digest(len(content), len(content), digest_of(content)))


def write_data_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> list[DataFile]:
    """Write *rows* to files of the table that *metadata* describes, of which nobody knows yet."""
    written = data_files(metadata, rows, io)
    for file in written:
        note_data_file(io, file.file_path, file.file_size_in_bytes)
    return written


def _is_local(location: str) -> bool:
    return local_path(location) is not None


def _keeps(location: str) -> bool:
    """Return whether the content of a file is kept."""
    return not location.endswith(DATA) and not _is_local(location)


def _kept(location: str, read: Callable[[], bytes]) -> bytes:
    return KEPT.get(location, read, kind="content", weigh=len)


def _read(location: str) -> bytes:
    """A small file of an object store, as it was written. Raises: FileDamaged, FileNotFoundError, OSError."""
    seen = read_mark(location)
    if seen is None:
        raise absent(location)
    if (known := KNOWN.of(location)) is not None:
        known.check(location, size=len(seen.content), tail=seen.content[-known.tail :] if known.tail else b"")
    return seen.content


class _Input(InputFile):
    def __init__(self, inner: InputFile, *, fresh: bool = False) -> None:
        super().__init__(inner.location)
        self._inner, self._fresh = inner, fresh

    def __len__(self) -> int:
        return len(self._content()) if _keeps(self.location) and not self._fresh else len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def _content(self) -> bytes:
        """All of a file that is kept, unless it is to be read again."""
        return _read(self.location) if self._fresh else _kept(self.location, partial(_read, self.location))

    def open(self, seekable: bool = True) -> InputStream:
        """Open the file and compare it with its note. Raises: FileDamaged."""
        if _keeps(self.location):
            return pa.BufferReader(self._content())  # type: ignore[no-any-return]
        known = KNOWN.of(self.location)
        if known is not None and known.length <= SMALL_BYTES and not _is_local(self.location):
            return pa.BufferReader(_read(self.location))  # type: ignore[no-any-return]
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
    def __init__(self, inner: OutputFile, digests: FileNotes) -> None:
        super().__init__(inner.location)
        self._inner, self._digests = inner, digests

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return _Input(self._inner.to_input_file())

    def create(self, overwrite: bool = False) -> OutputStream:
        """In an object store the file is created by one conditional request, when it is closed.

        Arrow would ask by two requests whether it is there, of which one is a listing, and then write over one that
        came in between. No file has the name of an earlier one, so a caller that may write over a file creates one too.
        """
        inner = self._inner.create(overwrite=overwrite) if _is_local(self.location) else _Created(self.location)
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
        _kept(self._location, lambda: content)

    def __enter__(self) -> _Created:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


class _Writing(OutputStream):
    """Hands on what is written, and makes the digest of it."""

    def __init__(self, path: str, inner: OutputStream, digests: FileNotes) -> None:
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
