"""What newer rows of a keyed table hide, as one file of position deletes for all data files that it concerns.

The format lets a position delete file name several data files, of one partition, and a data file have several delete
files. So those of the batch view stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import orjson
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.types import LongType, StringType

from harness_pipelines.lakes.iceberg.cuts.folder import Place
from harness_pipelines.lakes.iceberg.parquet import write_table
from harness_pipelines.lakes.iceberg.read.deletes import POSITIONS
from harness_pipelines.lakes.iceberg.read.file_columns import PATH_ID, POSITION_ID
from harness_pipelines.layout.files import Positions
from harness_pipelines.protocol.cuts import Chunk

HIDES = "hidden rows"  #: the maker of such a file in a list of chunks


def write_hidden(place: Place, hidden: Mapping[str, Positions], *, sequence: int) -> Chunk:
    """Write which rows of some data files are hidden: places in order, each once. Raises: OSError, StoreRefused."""
    paths = sorted(hidden, key=str.encode)  # readers and the specification want them in order
    counts = [len(hidden[path]) for path in paths]
    names = pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(paths), dtype=np.int32), counts), pa.array(paths))
    positions = np.concatenate([hidden[path] for path in paths])
    table = pa.table([names.cast(pa.string()), pa.array(positions, pa.int64())], schema=POSITIONS)
    path, sink = place.data_file("deletes"), pa.BufferOutputStream()
    # One row group, and one dictionary of paths however many there are: a path is written once.
    size = 2 * sum(map(len, paths)) + 2**20
    options = {"use_dictionary": ["file_path"], "dictionary_pagesize_limit": size, "row_group_size": len(positions)}
    write_table(table, sink, **options)
    rows, written = len(positions), place.put(path, sink.getvalue().to_pybytes())
    ends = [to_bytes(StringType(), end).hex() for end in (paths[0], paths[-1])]
    places = [to_bytes(LongType(), int(end)).hex() for end in (positions.min(), positions.max())]
    entry = {
        "content": 1,
        "path": path,
        "rows": rows,
        "bytes": written,
        "column_sizes": {},
        "value_counts": {str(PATH_ID): rows, str(POSITION_ID): rows},
        "null_value_counts": {str(PATH_ID): 0, str(POSITION_ID): 0},
        "nan_value_counts": {},
        "lower_bounds": {str(PATH_ID): ends[0], str(POSITION_ID): places[0]},
        "upper_bounds": {str(PATH_ID): ends[1], str(POSITION_ID): places[1]},
    }
    return Chunk(
        path=path,
        ranges={},
        rows=rows,
        bytes=written,
        sequence=sequence,
        maker=HIDES,
        entry=orjson.dumps(entry).decode(),
    )
