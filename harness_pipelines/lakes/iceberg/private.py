"""All imports of PyIceberg's private names. A test names the version that they were checked with.

Beside these names, methods with an underscore are used in some places, each with its own test: of
``MetastoreCatalog`` in `catalog.py` (``_update_and_stage_table``, ``_write_metadata``, ``_create_staged_table``,
``_load_file_io``), and of the snapshot producers and ``Transaction`` in `write/replace.py` and `write/publish.py`.
`parquet.py` puts a writer with page checksums into ``FileFormatFactory._registry``.
"""

from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator as InclusiveMetricsEvaluator
from pyiceberg.io.pyarrow import _dataframe_to_data_files as dataframe_to_data_files
from pyiceberg.table.update.snapshot import _ManifestMergeManager as ManifestMergeManager
from pyiceberg.table.update.snapshot import _OverwriteFiles as OverwriteFiles

__all__ = ["InclusiveMetricsEvaluator", "ManifestMergeManager", "OverwriteFiles", "dataframe_to_data_files"]
