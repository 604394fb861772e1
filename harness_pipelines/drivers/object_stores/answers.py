"""Whether it is an object store that answers.

A proxy, a captive portal or the wrong port answers each request with status 200 and a page. Clients take the page for
what the store has: an object, or, where it is XML, a listing without files. A store names the version of each object
that it shows (ETag), and nobody writes pages into a warehouse.
"""

from __future__ import annotations

from hashlib import md5
from typing import TYPE_CHECKING
from uuid import uuid4

from harness_pipelines.drivers.object_stores.clients import objects
from harness_pipelines.drivers.object_stores.troubles import NO_STORE, refusal, store_errors

if TYPE_CHECKING:
    from obstore import GetResult


class NoStore(OSError):
    """What answers is no object store; it may be one again by itself, as when a portal lets this machine through."""


def check_answer(location: str, found: GetResult) -> None:
    """What was got, or asked about, is an object of a store. Raises: NoStore."""
    content_type = str(found.attributes.get("Content-Type") or "").partition(";")[0].strip().lower()
    is_page = content_type in ("text/html", "application/xhtml+xml")
    # A store over a folder may know no version of a file that was copied into it.
    if is_page or (found.meta["e_tag"] is None and not content_type.endswith("/octet-stream")):
        says = f"its answer for {location} is {content_type or 'of no type'}, {found.meta['size']} bytes"
        raise NoStore(f"{NO_STORE}: {says}. Check HARNESS_S3_ENDPOINT, and proxies on the way")


def stored_size(location: str) -> int | None:
    """Bytes of an object; ``None`` where there is none. Raises: OSError, StoreRefused."""
    import obstore
    from obstore.exceptions import NotFoundError

    store, key = objects(location)
    with store_errors(location):
        try:
            found = obstore.get(store, key, options={"head": True})
        except (FileNotFoundError, NotFoundError) as error:
            if refusal(str(error)):
                raise  # no such bucket
            return None
        check_answer(location, found)
        return found.meta["size"]


def check_kept(location: str, content: bytes, tag: str | None) -> None:
    """The store has *content*, of which it answered that it was written and is known by *tag*.

    Raises: OSError, StoreRefused.

    A tag that is the MD5 of the content is proof: who answers has read it. Encryption by a KMS key makes another one,
    and what answers every PUT with one tag has any: then the store is asked for the length.
    """
    if tag is not None and tag.strip('"') == md5(content, usedforsecurity=False).hexdigest():
        return
    if (found := stored_size(location)) != len(content):
        has = "it has no such file" if found is None else f"it has {found:,} bytes of {len(content):,}"
        raise NoStore(
            f"the store did not keep {location}, which it answered to have written: {has}. Check HARNESS_S3_ENDPOINT, "
            "and proxies on the way"
        )


def check_empty(folder: str) -> None:
    """A listing of *folder* that has no file comes from a store that has its bucket. Raises: OSError, StoreRefused.

    A store answers that an object which cannot be there is missing; a login with rights to a part of the bucket gets
    AccessDenied instead.
    """
    import obstore
    from obstore.exceptions import NotFoundError, PermissionDeniedError

    unknown = f"{folder.rstrip('/')}/.harness-no-such-file-{uuid4().hex}"
    store, key = objects(unknown)
    with store_errors(unknown):
        try:
            found = obstore.get(store, key)
        except (FileNotFoundError, NotFoundError) as error:
            if refusal(str(error)):
                raise  # no such bucket, which a listing by Arrow does not show
            return
        except PermissionDeniedError as error:
            if "<Code>AccessDenied</Code>" not in str(error):
                raise
            return
        check_answer(unknown, found)
        raise NoStore(f"{NO_STORE}: it has {unknown}, which nobody has written")
