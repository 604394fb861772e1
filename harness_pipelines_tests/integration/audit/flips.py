"""Bits that change in files of the lake, and what a process sees of it that has read nothing before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.spec.locations import normal


def local(path: str) -> Path:
    return Path(urlsplit(path).path)


def forget_what_was_read() -> None:
    """Nothing that was parsed before answers for what a file holds now."""
    KEPT.clear()


def unnoted(path: str | Path) -> None:
    """The file is as one that was written before there were digests: this process knows of none."""
    place = str(path)
    KNOWN.keep({normal(place if ":" in place else f"file://{place}"): None})


@contextmanager
def changed(path: str, content: bytes) -> Iterator[None]:
    """The file at *path* holds *content* for the length of the block."""
    file = local(path)
    whole = file.read_bytes()
    file.write_bytes(content)
    forget_what_was_read()
    try:
        yield
    finally:
        file.write_bytes(whole)
        forget_what_was_read()


@contextmanager
def flipped(path: str, bit: int) -> Iterator[None]:
    """One bit of the file at *path* is another one."""
    content = bytearray(local(path).read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    with changed(path, bytes(content)):
        yield


def bits(path: str, count: int) -> list[int]:
    """*count* bits all over the file at *path*, its first and last bytes among them."""
    size = local(path).stat().st_size * 8
    return sorted({i * (size - 1) // max(count - 1, 1) for i in range(count)})
