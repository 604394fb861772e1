"""What no listing of a bucket shows: uploads that were cut off, and whether it keeps what is deleted.

Arrow, Spark and obstore can do neither; the AWS SDK can, with the same settings. A store that has no such request, or
credentials that may not make it, are no error: the answer is then that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import structlog

from harness_pipelines.drivers.object_stores.clients import administration, bucket_of
from harness_pipelines.drivers.object_stores.troubles import named
from harness_pipelines.spec.locations import local_path

log = structlog.get_logger(__name__)
#: Codes by which a store says that it has no such request, or that these credentials may not make it.
_UNASKABLE = frozenset({"NotImplemented", "MethodNotAllowed", "NotSupported", "AccessDenied"})


class Unaskable(Exception):
    """Nobody can say: see the module."""


def abort_uploads(folder: str, *, before: datetime) -> int:
    """Abort the uploads of several parts to files below *folder* that began *before*, by the store's clock.

    Their parts are billed and no listing shows them. Returns how many there were.
    Raises: OSError, StoreRefused.
    """
    if local_path(folder) is not None:
        return 0
    aborted = 0
    try:
        with _errors(folder):
            for found in _uploads(folder, before=before):
                client = administration(folder)
                bucket, _ = bucket_of(folder)
                client.abort_multipart_upload(Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"])
                aborted += 1
    except Unaskable as error:
        log.info("store.uploads_unknown", folder=folder, why=str(error))
    return aborted


def cut_off_uploads(folder: str, *, before: datetime) -> int | None:
    """How many uploads `abort_uploads` would abort; None: nobody knows. Raises: OSError, StoreRefused."""
    if local_path(folder) is not None:
        return 0
    try:
        with _errors(folder):
            return sum(1 for _ in _uploads(folder, before=before))
    except Unaskable as error:
        log.info("store.uploads_unknown", folder=folder, why=str(error))
    return None


def _uploads(folder: str, *, before: datetime) -> Iterator[Mapping[str, Any]]:
    bucket, key = bucket_of(folder)
    pages = administration(folder).get_paginator("list_multipart_uploads")
    for page in pages.paginate(Bucket=bucket, Prefix=f"{key.rstrip('/')}/"):
        yield from (upload for upload in page.get("Uploads", ()) if upload["Initiated"] < before)


def keeps_deleted(location: str) -> bool | None:
    """Whether the bucket of *location* has versions, so that what is deleted stays and is billed; None: nobody knows.

    Raises: OSError, StoreRefused.
    """
    if local_path(location) is not None:
        return False
    try:
        with _errors(location):
            found = administration(location).get_bucket_versioning(Bucket=bucket_of(location)[0])
    except Unaskable as error:
        log.info("store.versioning_unknown", location=location, why=str(error))
        return None
    return bool(found.get("Status") == "Enabled")


def delete_odd(path: str) -> None:
    """Delete a file whose key obstore does not take. Raises: OSError, StoreRefused."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    bucket, key = bucket_of(path)
    try:
        administration(path).delete_object(Bucket=bucket, Key=key)
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise named(path, error) from error


@contextmanager
def _errors(location: str) -> Iterator[None]:
    """Errors of the SDK by name. Raises: Unaskable, StoreRefused, OSError."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _UNASKABLE:
            raise Unaskable(code) from error
        if code == "NoSuchUpload":  # it ended meanwhile; the next run looks at the others
            return
        raise named(location, error) from error
    except (BotoCoreError, ResponseParserError) as error:  # the second is what it makes of a page
        raise named(location, error) from error
