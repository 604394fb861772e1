"""What a load hands out for the files of a table: where their store is, and keys that may only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from harness_pipelines.drivers.object_stores.clients import reader_options
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import READING_KEYS, Settings


def handed_out(settings: Settings) -> Mapping[str, str]:
    """The properties of Iceberg by which engines reach the store; none where they are to bring keys themselves.

    Raises: UsageError for keys that belong to no store, or that this server writes with.
    """
    if settings.reading_keys is None:
        return {}
    named = " and ".join(READING_KEYS)
    if not (settings.warehouse or "").startswith("s3://"):
        raise UsageError(
            f"{named} are for a warehouse on an object store, which {settings.warehouse} is not; unset them"
        )
    key, secret = settings.reading_keys
    if key == settings.s3.access_key:
        raise UsageError(
            f"{named} are the keys that this server writes with; nothing was served. Make other ones, which may only "
            "read the warehouse, or unset them: engines then bring their own"
        )
    return reader_options(key, secret, settings.s3)


def credentials(location: str, storage: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
    """What `handed_out` gave as the protocol's list of credentials, for all files of the bucket of *location*."""
    if not storage:
        return []
    place = urlsplit(location)
    return [{"prefix": f"{place.scheme}://{place.netloc}/", "config": dict(storage)}]
