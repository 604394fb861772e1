"""Files of the lake as tests look at them and damage them: by location, in a folder or on an object store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from harness_pipelines.drivers.files import delete, opened, size_of
from harness_pipelines.spec.locations import normal


def exists(location: str) -> bool:
    return size_of(normal(location)) is not None


def remove(location: str) -> None:
    """Delete a file that may be gone already."""
    delete([normal(location)])


def content(location: str) -> bytes:
    system, path = opened(normal(location))
    with system.open_input_stream(path) as stream:
        return bytes(stream.read())


def put(location: str, written: bytes) -> None:
    """Write a file, or write over it."""
    system, path = opened(normal(location))
    with system.open_output_stream(path) as stream:
        stream.write(written)


def parquet(location: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one data file, hidden ones too."""
    system, path = opened(normal(location))
    with system.open_input_file(path) as file:
        return pq.ParquetFile(file).read(columns=None if columns is None else list(columns))


def rewrite(location: str, rows: pa.Table) -> None:
    """Let *rows* be what a data file has, in place."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    put(location, sink.getvalue().to_pybytes())


@contextmanager
def moved_away(*paths: str) -> Iterator[None]:
    """Files are not there for the length of the block."""
    kept = {path: content(path) for path in paths}
    for path in paths:
        remove(path)
    try:
        yield
    finally:
        for path, whole in kept.items():
            put(path, whole)


def name_of(location: str) -> str:
    return location.rpartition("/")[2]
