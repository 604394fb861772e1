"""The port that plans scans of a cut for engines that let the server do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness_pipelines.errors import HarnessError

#: Data and delete files of a state that a scan is planned of: each takes about 500 bytes of the answer.
FILES_MAX = 10_000


class ScanTooLarge(HarnessError):
    """A state has more files than the server plans scans of."""

    way_on = "let the engine plan: leave `scan-planning-mode` out of its settings"


class ScanOfUnknown(HarnessError):
    """The snapshot that a scan is to be planned of is not there, or its time has ended."""

    way_on = "load the table again: the scan is then of its newest snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanWanted:
    """What an engine asks for."""

    snapshot_id: int | None = None  #: None: the state that a load of the table would give now
    where: object = None  #: the rows that it wants, in the JSON form of Iceberg's expressions; None: all
    case_sensitive: bool = True


class ScanPlans(Protocol):
    """Plans scans of states by their metadata files."""

    def plan(self, metadata: str, wanted: ScanWanted) -> Mapping[str, Any]:
        """The data files with rows of a scan, with the delete files of each, in the JSON form of the REST protocol.

        A file without a wanted row may be among them; the engine filters the rows of all.
        Raises: ScanTooLarge, ScanOfUnknown, CutDamaged, LakeAway, StoreRefused.
        """
        ...
