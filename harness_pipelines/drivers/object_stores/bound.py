"""Which settings reach the store of a location: those of the installation whose warehouse it lies in.

A location alone is what manifests and ledgers have, so the settings are looked up by it. This module imports no client.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.object_stores import S3Settings


class Bound:
    """Settings by warehouse. Those that were bound last answer for a location in no warehouse, as of a moved one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_warehouse: dict[str, S3Settings] = {}
        self._last = S3Settings()

    def bind(self, warehouse: str | None, s3: S3Settings) -> None:
        """Let *s3* reach what lies below *warehouse*, for as long as this process lives."""
        if warehouse is None or local_path(warehouse) is not None:
            return
        with self._lock:
            self._by_warehouse[warehouse.rstrip("/") + "/"] = s3
            self._last = s3

    def of(self, location: str) -> S3Settings:
        with self._lock:
            fitting = [w for w in self._by_warehouse if f"{location}/".startswith(w)]
            return self._by_warehouse[max(fitting, key=len)] if fitting else self._last


BOUND: Final = Bound()
