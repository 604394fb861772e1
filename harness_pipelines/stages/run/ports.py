"""The ports that a worker uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness_pipelines.ports.access import (
    HasBufferRows,
    HasBufferWriter,
    HasClose,
    HasEvolutions,
    HasGuard,
    HasHistoryFold,
    HasLakeSchemas,
    HasLog,
    HasMirrors,
    HasNews,
    HasOverlays,
    HasRawBytes,
    HasRecalls,
    HasReclusters,
    HasSchemas,
    HasSegments,
    HasSettings,
    HasSignOffs,
    HasUpkeep,
)
from harness_pipelines.stages import compact
from harness_pipelines.stages.run.looks import Ports as LooksPorts


class Ports(
    compact.Ports,
    LooksPorts,
    HasBufferRows,
    HasBufferWriter,
    HasClose,
    HasEvolutions,
    HasLog,
    HasMirrors,
    HasNews,
    HasOverlays,
    HasRawBytes,
    HasRecalls,
    HasReclusters,
    HasLakeSchemas,
    HasSchemas,
    HasSegments,
    HasSettings,
    HasSignOffs,
    HasGuard,
    HasHistoryFold,
    HasUpkeep,
    Protocol,
):
    """The ports that it uses."""

    def opener(self, *, elsewhere: bool = False) -> Callable[[], Ports]:
        """Opens the same in another process; *elsewhere*: on another machine."""
        ...
