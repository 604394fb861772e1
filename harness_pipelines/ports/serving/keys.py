"""The port that finds rows of the batch view by their keys, for the cuts of keyed tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from harness_pipelines.errors import TryAgain

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from harness_pipelines.protocol.key_hashes import Keys
    from harness_pipelines.protocol.keyed_cuts import Cold
    from harness_pipelines.protocol.reading.plan import ReadPlan


class CutOverLimits(TryAgain):
    """The newest versions of a keyed table are more than a cut may fold, or took too long to fold."""

    way_on = (
        "let a worker merge, so that less is above the batch view; raise `serve.hot_rows` of the table; or read it by "
        "`Table.read`, `harness sql` or Spark"
    )


class BatchKeys(Protocol):
    """Where in the batch view of a plan rows with some keys are.

    Every method raises: LakeFileMissing, LakeFileBroken, LakeUnreadable, DeletesBroken.
    """

    def files(self, plan: ReadPlan) -> Mapping[str, str]:
        """By the path of each data file of the batch view the path of its delete file, or "".

        Their order numbers them. Raises, besides: CutOverLimits where the view has rows that the plan leaves out.
        """
        ...

    def find(self, plan: ReadPlan, values: pa.Table, keys: Keys, *, among: Collection[int] | None) -> Cold:
        """All rows with one of *keys*, which are in order and belong to *values*, hidden ones too.

        *among* are the numbers of the files that are looked into; None: all.
        Raises, besides: CutOverLimits where what is needed of the files takes more than there is room for.
        """
        ...

    def live(self, plan: ReadPlan, cold: Cold) -> NDArray[np.bool_]:
        """Which rows of *cold*, all of files of the view, no delete file of the view hides."""
        ...
