"""Small files that decide something: created once, and replaced only by who has read what is replaced.

In a local folder creation is exclusive and a replacement is a rename, as the file system has no more. In an object
store both are conditional requests, which the store decides.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness_pipelines.drivers.object_stores.answers import check_answer, check_kept
from harness_pipelines.drivers.object_stores.clients import objects
from harness_pipelines.drivers.object_stores.troubles import refusal, store_errors
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.spec.locations import local_path

NO_TAG = '"00000000000000000000000000000000"'  #: an ETag that no object has


class StoreUnfit(HarnessError):
    """The store does not do conditional writes, without which two ledgers could own one warehouse."""

    recovery = Recovery.NEVER
    way_on = "use AWS S3, or another store that honours If-None-Match and If-Match on PUT"


@dataclass(frozen=True, slots=True)
class Marked:
    """What was read, and by what the store knows it again."""

    content: bytes
    tag: str | None  #: the object's ETag; None in a local folder


def read_mark(location: str) -> Marked | None:
    """What the file holds; ``None`` when there is none. Raises: OSError, StoreRefused."""
    if (path := local_path(location)) is not None:
        try:
            return Marked(Path(path).read_bytes(), None)
        except FileNotFoundError:
            return None
    import obstore
    from obstore.exceptions import NotFoundError

    store, key = objects(location)
    with store_errors(location):
        try:
            found = obstore.get(store, key)
            check_answer(location, found)
            return Marked(bytes(found.bytes()), found.meta["e_tag"])
        except (FileNotFoundError, NotFoundError) as error:
            if refusal(str(error)):
                raise  # no such bucket
            return None


def read_end(location: str, length: int) -> tuple[bytes, int]:
    """The last *length* bytes of an object, and how many it has. Raises: FileNotFoundError, OSError, StoreRefused."""
    import obstore
    from obstore.exceptions import NotFoundError

    store, key = objects(location)
    with store_errors(location):
        try:
            found = obstore.get(store, key, options={"range": {"suffix": length}})
            check_answer(location, found)
            return bytes(found.bytes()), found.meta["size"]
        except NotFoundError as error:
            if refusal(str(error)):
                raise  # no such bucket
            raise absent(location) from error


def absent(location: str) -> FileNotFoundError:
    """What a file system raises for a file that is not there."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)


def create_mark(location: str, content: bytes) -> bool:
    """Write a new file, whole or not at all; False when one is there, which stays. Raises: OSError, StoreRefused.

    After a lost answer it may be our own that is there: read it.
    """
    if (path := local_path(location)) is not None:
        try:
            return _create(path, content)
        except FileNotFoundError:  # its folder is made with the first file
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            return _create(path, content)
    return _put(location, content, mode="create")


def replace_mark(location: str, content: bytes, *, seen: Marked | None) -> bool:
    """Write over what was *seen*; False when something else is there by now. Raises: OSError, StoreRefused."""
    if (path := local_path(location)) is not None:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(f"{path}.{uuid4().hex}")
        draft.write_bytes(content)
        draft.replace(file)  # no reader sees half of it
        return True
    return _put(location, content, mode="create" if seen is None else {"e_tag": seen.tag})


def check_conditions(location: str, content: bytes) -> None:
    """The store refuses to create a file that is there, and to replace one by a tag that it has not.

    *location* is a mark that holds *content*, so that a store which does neither writes nothing else.
    Raises: StoreUnfit, OSError.
    """
    if local_path(location) is not None:
        return
    for mode, header in (("create", "If-None-Match"), ({"e_tag": NO_TAG}, "If-Match")):
        if _put(location, content, mode=mode):
            raise StoreUnfit(
                f"the store of {location} ignores {header}: it wrote over an object that it was asked not to. Two "
                "ledgers could own this warehouse, so nothing else was written"
            )


def _put(location: str, content: bytes, *, mode: Any) -> bool:
    import obstore
    from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

    store, key = objects(location)
    with store_errors(location):
        try:
            written = obstore.put(store, key, content, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except (FileNotFoundError, NotFoundError) as error:
            if mode == "create" or refusal(str(error)):
                raise
            return False  # what was to be replaced is gone
    check_kept(location, content, written["e_tag"])
    return True


def _create(path: str, content: bytes) -> bool:
    is_ours = False
    try:
        with open(path, "xb") as file:
            is_ours = True
            file.write(content)
    except FileExistsError:
        return False
    except OSError:  # the disk is full, say
        if is_ours:  # else it may be there by now, of another
            Path(path).unlink(missing_ok=True)
        raise
    return True
