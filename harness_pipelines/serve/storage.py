"""What a load hands out for the files of a table: where their store is, and keys that may only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from harness_pipelines.drivers.object_stores.clients import reader_options
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import READING_KEYS, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """By which engines reach the files of all tables; nothing where they bring their own keys."""

    prefix: str = ""  #: of the locations that the keys are for
    config: Mapping[str, str] = field(default_factory=dict, repr=False)  #: properties of Iceberg

    def credentials(self) -> Sequence[Mapping[str, Any]]:
        """The same as the protocol's list of credentials."""
        return [{"prefix": self.prefix, "config": dict(self.config)}] if self.config else []


def handed_out(settings: Settings) -> Storage:
    """What the settings say that engines get.

    Raises: UsageError for keys that belong to no store, or that this server writes with.
    """
    if settings.reading_keys is None:
        return Storage()
    named = " and ".join(READING_KEYS)
    if settings.warehouse is None or not settings.warehouse.startswith("s3://"):
        raise UsageError(
            f"{named} are for a warehouse on an object store, which {settings.warehouse} is not; unset them"
        )
    key, secret = settings.reading_keys
    if key == settings.s3.access_key:
        raise UsageError(
            f"{named} are the keys that this server writes with; nothing was served. Make other ones, which may only "
            "read the warehouse, or unset them: engines then bring their own"
        )
    bucket = urlsplit(settings.warehouse).netloc
    return Storage(prefix=f"s3://{bucket}/", config=reader_options(key, secret, settings.s3))
