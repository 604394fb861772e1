"""Bits that change in files of the lake, and what a process sees of it that has read nothing before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.spec.locations import normal
from harness_pipelines_tests.lake_files import content, put


def forget_what_was_read() -> None:
    """Nothing that was parsed before answers for what a file holds now."""
    KEPT.clear()


def unnoted(path: str) -> None:
    """The file is as one that was written before there were digests: this process knows of none."""
    KNOWN.keep({normal(path): None})


@contextmanager
def changed(path: str, written: bytes) -> Iterator[None]:
    """The file at *path* holds *written* for the length of the block."""
    whole = content(path)
    put(path, written)
    forget_what_was_read()
    try:
        yield
    finally:
        put(path, whole)
        forget_what_was_read()


@contextmanager
def flipped(path: str, bit: int) -> Iterator[None]:
    """One bit of the file at *path* is another one."""
    damaged = bytearray(content(path))
    damaged[bit // 8] ^= 1 << bit % 8
    with changed(path, bytes(damaged)):
        yield


def bits(path: str, count: int) -> list[int]:
    """*count* bits all over the file at *path*, its first and last bytes among them."""
    size = len(content(path)) * 8
    return sorted({i * (size - 1) // max(count - 1, 1) for i in range(count)})
