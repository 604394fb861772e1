"""Listings of an object store, page by page.

A listing that ends too early looks like files that are gone: expire and a purge act on that, and so does the look for
commits that the ledger lost. Arrow and obstore take a page that a gateway emptied for the last one, and say nothing;
so pages are asked for by the AWS SDK, and each is looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness_pipelines.drivers.object_stores.answers import NoStore, check_empty
from harness_pipelines.drivers.object_stores.clients import administration, bucket_of
from harness_pipelines.drivers.object_stores.troubles import NO_STORE, named

UNSAID = "does not say whether it is the last one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a listing; or a folder, of one that is asked for one level."""

    name: str  #: below the folder that is listed
    bytes: int = 0
    modified: datetime | None = None  #: by the store's clock
    is_folder: bool = False


def entries(folder: str, *, deep: bool) -> Iterator[Entry]:
    """What there is below *folder*: every file, or without *deep* what lies directly in it.

    Raises: OSError, NoStore among them, when it cannot be listed to its end; StoreRefused.
    """
    bucket, key = bucket_of(folder.rstrip("/"))
    prefix = f"{key}/" if key else ""
    is_empty = True
    for page in _pages(folder, Bucket=bucket, Prefix=prefix, **({} if deep else {"Delimiter": "/"})):
        for found in page.get("Contents", ()):
            is_empty = False
            name = _below(folder, prefix, found["Key"])
            if name and not name.endswith("/"):  # such a key is a marker of a folder
                yield Entry(name=name, bytes=found["Size"], modified=found.get("LastModified"))
        for found in page.get("CommonPrefixes", ()):
            is_empty = False
            yield Entry(name=_below(folder, prefix, found["Prefix"]).rstrip("/"), is_folder=True)
    if is_empty:
        check_empty(folder)


def _pages(folder: str, **asked: str) -> Iterator[Mapping[str, Any]]:
    """Each page, until the store says that it was the last one. Raises: OSError, NoStore, StoreRefused."""
    client, tokens = administration(folder), set[str]()
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    while True:
        try:
            page = client.list_objects_v2(**asked)
        except ClientError as error:
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            # A page with status 200 is one with status 500 by the time that the SDK shows it.
            if error.response["Error"].get("Code") == "500" and "html" in str(headers.get("content-type")):
                raise NoStore(f"{NO_STORE}: {named(folder, error)}") from error
            raise named(folder, error) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise named(folder, error) from error
        if "IsTruncated" not in page:  # a body without anything, or a page of XML
            raise _cut(folder, tokens, UNSAID)
        yield page
        if not page["IsTruncated"]:
            return
        token = page.get("NextContinuationToken")
        if not token:
            raise _cut(folder, tokens, "is not the last one and does not say how to go on")
        if token in tokens:
            raise _cut(folder, tokens, "leads back to a page that was there before")
        tokens.add(token)
        asked["ContinuationToken"] = token


def _below(folder: str, prefix: str, key: str) -> str:
    """The part of *key* behind *prefix*. Raises: NoStore."""
    if not key.startswith(prefix):
        raise NoStore(f"{NO_STORE}: asked for what is in {folder} it lists {key!r}")
    return key[len(prefix) :]


def _cut(folder: str, tokens: set[str], why: str) -> NoStore:
    """The trouble with the page behind those of *tokens*."""
    said = f"page {len(tokens) + 1} of its listing of {folder} {why}"
    if not tokens and why == UNSAID:
        return NoStore(f"{NO_STORE}: {said}. Check HARNESS_S3_ENDPOINT, and proxies on the way")
    return NoStore(f"the store's answer was cut off, or is another one's: {said}. Check proxies on the way to it")
