"""Files of the warehouse by location: open, list, check, compare and delete, with links resolved.

The module is what the port `FileStore` asks for: the composition root hands it to flows and to the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from harness_pipelines.drivers.object_stores.answers import stored_size
from harness_pipelines.drivers.object_stores.bucket import abort_uploads, keeps_deleted
from harness_pipelines.drivers.object_stores.clients import filesystem
from harness_pipelines.drivers.object_stores.deletion import SomeLeft, batches, delete
from harness_pipelines.drivers.object_stores.listing import entries
from harness_pipelines.drivers.object_stores.marks import absent
from harness_pipelines.spec.locations import local_path, normal

__all__ = [
    "Folder",
    "ListedFile",
    "LocalFile",
    "SameFile",
    "SomeLeft",
    "abort_uploads",
    "batches",
    "delete",
    "directly_in",
    "keeps_deleted",
    "listed",
    "opened",
    "remove_empty",
    "remove_folders",
    "size_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file of a listing."""

    path: str  #: in the normal form
    bytes: int
    modified: datetime | None  #: as the storage's clock had it


class LocalFile:
    """A file of a listing of this machine, of which is asked only what somebody wants to know.

    Of a file that is gone meanwhile *bytes* and *modified* raise FileNotFoundError.
    """

    __slots__ = ("_path", "_stat", "path")

    def __init__(self, location: str, path: str) -> None:
        self.path, self._path = location, path  #: as `ListedFile.path`; as the system has it
        self._stat: os.stat_result | None = None

    @property
    def bytes(self) -> int:
        return self._seen.st_size

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self._seen.st_mtime_ns / 1e9, UTC)

    def is_there(self) -> bool:
        """From then on it says what it was then."""
        with suppress(FileNotFoundError):
            return bool(self._seen)
        return False

    @property
    def _seen(self) -> os.stat_result:
        if self._stat is None:
            self._stat = os.stat(self._path)
        return self._stat


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Names of what lies directly in a folder."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


def opened(location: str) -> tuple[FileSystem, str]:
    """The file system that *location* is in, and its path there.

    A local path is taken as it is written, as Iceberg takes it: Arrow would decode it, and refuse a space in it.
    """
    if (path := local_path(location)) is not None:
        return LocalFileSystem(), path
    return filesystem(location), location.partition("://")[2]


def listed(folder: str, *, allow_not_found: bool = True, sizes: bool = True) -> Iterator[ListedFile | LocalFile]:
    """Every file below *folder*, at any depth. Raises: OSError when it cannot be listed; StoreRefused.

    Without *sizes* the size and the age of a local file are asked for when the caller wants them.
    """
    base = _base(folder)
    if local_path(base) is None:
        found = False
        for one in entries(base, deep=True):
            found = True
            yield ListedFile(path=normal(f"{base}/{one.name}"), bytes=one.bytes, modified=one.modified)
        if not found and not allow_not_found:
            raise absent(folder)
        return
    root, base = (local_path(base) or "").rstrip("/"), base.rstrip("/")
    for file in _local(root or "/", base, allow_not_found=allow_not_found):
        if not sizes or file.is_there():
            yield file


def _local(root: str, base: str, *, allow_not_found: bool) -> Iterator[LocalFile]:
    """The files below the folder *root*, whose normal form is *base*: what is below it is in that form too."""
    waiting = [(root, base, allow_not_found)]
    while waiting:
        folder, location, may_lack = waiting.pop()
        try:
            there = os.scandir(folder)
        except FileNotFoundError:
            if may_lack:
                continue
            raise
        with there:
            for entry in there:
                if entry.is_file():
                    yield LocalFile(f"{location}/{entry.name}", entry.path)
                elif entry.is_dir():
                    waiting.append((entry.path, f"{location}/{entry.name}", True))  # it may go while it is looked at


def directly_in(folder: str) -> Folder:
    """What lies directly in *folder*; nothing where it is not there. Raises: OSError; StoreRefused."""
    if local_path(folder) is None:
        found = list(entries(folder, deep=False))
        files = tuple(one.name for one in found if not one.is_folder)
        return Folder(files=files, folders=tuple(one.name for one in found if one.is_folder))
    system, root = opened(folder)
    there = system.get_file_info(FileSelector(root, allow_not_found=True))
    files = tuple(one.base_name for one in there if one.type is FileType.File)
    return Folder(files=files, folders=tuple(one.base_name for one in there if one.type is FileType.Directory))


def remove_folders(location: str) -> None:
    """Remove a local folder with the folders in it, but for those in which files lie; an object store has none."""
    if (path := local_path(location)) is not None:
        for folder, _, _ in os.walk(path, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def remove_empty(location: str) -> None:
    """Remove a local folder that has nothing in it; any other one stays."""
    if (path := local_path(location)) is not None:
        with suppress(OSError):
            os.rmdir(path)


def _base(folder: str) -> str:
    """*folder* in its normal form, unless ``..`` behind a link makes that another folder."""
    base, path = normal(folder), local_path(folder)
    if path is None or (real := os.path.realpath(path)) == os.path.realpath(local_path(base) or ""):
        return base
    return f"file://{real}"


def size_of(location: str) -> int | None:
    """Bytes of a file; ``None`` where there is no such file. Raises: OSError when the store is away; StoreRefused."""
    if local_path(location) is None:
        return stored_size(location)
    system, path = opened(location)
    info = system.get_file_info(path)
    return info.size if info.type is FileType.File else None


_STEPS = ("", ".", "..")  #: what may follow a `/` and names no file


class SameFile:
    """Which paths are one file: the normal form, and on this machine what links in its folder lead to.

    Folders are looked at once, so one of these is for one look at a warehouse.
    """

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._spelled: dict[str, str] = {}  #: the keys of folders, by each spelling that files had

    def key(self, location: str) -> str:
        """The same of all spellings of one file."""
        spelled, _, name = location.rpartition("/")
        if (folder := self._spelled.get(spelled)) is not None and name not in _STEPS:
            return f"{folder}/{name}"
        path = local_path(location)
        if path is None:
            return normal(location)
        folder, _, name = path.rpartition("/")
        key = normal(f"{self.folder(f'file://{folder}')}/{name}")
        if spelled and name not in _STEPS and key.endswith(f"/{name}"):
            self._spelled[spelled] = key[: -len(name) - 1]
        return key

    def folder(self, location: str) -> str:
        """The same of all spellings of one folder."""
        path = local_path(location)
        if path is None:
            return normal(location)
        return f"file://{self._resolved(path)}"

    def _resolved(self, path: str) -> str:
        """As `os.path.realpath`, but the links of a parent are followed once for all folders in it."""
        if (known := self._folders.get(path)) is not None:
            return known
        parent, _, name = path.rpartition("/")
        if not parent or name in _STEPS:
            found = os.path.realpath(path)
        else:
            found = f"{self._resolved(parent).rstrip('/')}/{name}"
            if os.path.islink(found):
                found = os.path.realpath(found)
        self._folders[path] = found
        return found

    def keys(self, locations: Iterable[str]) -> dict[str, str]:
        """The *locations* by their keys."""
        return {self.key(location): location for location in locations}
