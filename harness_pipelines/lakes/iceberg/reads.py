"""How flows read the lake: views as metadata files fix them, and the past of a view.

One reader of manifests is below all of it (`read/manifests.py`), with one cache, and one reader of Parquet files by
Iceberg's field ids (`read/scan.py`, `parquet.py`).
"""

from __future__ import annotations

from harness_pipelines.lakes.iceberg.inspect.lineage import IcebergPast
from harness_pipelines.lakes.iceberg.inspect.survey import survey
from harness_pipelines.lakes.iceberg.read.in_order import scan_in_order
from harness_pipelines.lakes.iceberg.read.scan import (
    files_of,
    located,
    paths_matching,
    pinned,
    scan,
    stored_in,
)


class IcebergReads:
    """`LakeReads` over PyIceberg's metadata and Arrow.

    None of them needs more than the metadata file that it is given: no catalog, no ledger.
    """

    view = staticmethod(pinned)
    scan = staticmethod(scan)
    in_order = staticmethod(scan_in_order)
    located = staticmethod(located)
    files_of = staticmethod(files_of)
    paths_matching = staticmethod(paths_matching)
    stored_in = staticmethod(stored_in)
    past = staticmethod(IcebergPast)
    survey = staticmethod(survey)
