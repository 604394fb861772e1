"""Position deletes: files that list the rows of data files that newer rows hide.

A data file has at most one delete file, as with the deletion vectors of Iceberg's format 3: a newer one tells the rows
of the older one too, which goes in the same snapshot. Any engine that reads format 2 applies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

from harness_pipelines.lakes.iceberg.checked_io import note_data_file
from harness_pipelines.lakes.iceberg.parquet import damage_named, read_columns, write_table
from harness_pipelines.lakes.iceberg.read.file_columns import PATH_ID, POSITION_ID
from harness_pipelines.layout.files import Positions
from harness_pipelines.ports.errors import DeletesBroken, ForeignDeletes
from harness_pipelines.ports.lake import DeleteFile, LakeFile
from harness_pipelines.ports.lake_writes import Hidden
from harness_pipelines.protocol.lake.file_digests import FileDamaged

if TYPE_CHECKING:
    from harness_pipelines.lakes.iceberg.read.live_files import LiveFiles

AT_ONCE = 8  #: small files that are read and written at once: a store far away answers slowly, but many at a time
#: The columns of a file of position deletes.
POSITIONS = pa.schema([
    pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": str(PATH_ID).encode()}),
    pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": str(POSITION_ID).encode()}),
])  # fmt: skip


def split(files: Iterable[DataFile]) -> tuple[list[DataFile], dict[str, DataFile]]:
    """Data files, and by the path of a data file its delete file. Raises: ForeignDeletes."""
    data: list[DataFile] = []
    deletes: dict[str, DataFile] = {}
    for file in files:
        if file.content is DataFileContent.DATA:
            data.append(file)
        elif (path := deleted_from(file)) is not None and path not in deletes:
            deletes[path] = file
        else:
            raise foreign(file.file_path)
    return data, deletes


def foreign(path: str) -> ForeignDeletes:
    return ForeignDeletes(
        f"{path} holds deletes that the harness did not write; `harness fsck` names them, `harness revert TABLE --to "
        "HEAD --yes` sets the view back to what the ledger published"
    )


def deleted_from(file: DataFile) -> str | None:
    """The one data file whose rows a position delete file names; None of any other file."""
    low, high = ((bounds or {}).get(PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    if file.content is not DataFileContent.POSITION_DELETES or low is None or low != high:
        return None
    return low.decode()


def positions_of(io: FileIO, deletes: DeleteFile, *, rows: int) -> Positions:
    """Which of the *rows* rows of its data file a delete file hides. Raises: DeletesBroken; OSError if it is away."""
    path = deletes.path
    try:
        with damage_named(io, path), io.new_input(path).open() as stream:
            column = read_columns(stream, ["pos"]).column("pos")
    except FileDamaged as error:
        raise _broken(path, error.why) from error
    except KeyError as error:
        raise _broken(path, str(error)) from error
    found = np.sort(column.to_numpy())
    if len(found) != deletes.rows or np.any(found[1:] == found[:-1]):
        raise _broken(path, f"expected {deletes.rows:,} rows, each once, found {len(np.unique(found)):,}")
    if len(found) and not 0 <= found[0] <= found[-1] < rows:
        raise _broken(path, f"it names row {found[-1] if found[0] >= 0 else found[0]} of a file of {rows:,} rows")
    return found


def _broken(path: str, why: str) -> DeletesBroken:
    return DeletesBroken(
        f"{path} does not tell which rows are hidden: {why}; nothing is returned and nothing was written. Bring the "
        "file back from a copy of the warehouse, or `harness revert TABLE --to VERSION --yes` to a version before it"
    )


def hide(view: Table, live: LiveFiles, positions: Mapping[str, Positions]) -> Hidden:
    """Write which rows of some of the *live* data files of *view* are hidden from now on, with those that are already.

    Raises: DeletesBroken.
    """
    of = {file.path: (file, spec_id) for file, spec_id in live.named(positions)}

    def more_of(path: str) -> DataFile:
        file, spec_id = of[path]
        known = [] if file.deletes is None else [positions_of(view.io, file.deletes, rows=file.stored)]
        return _write(view, file, np.unique(np.concatenate([*known, positions[path]])), spec_id=spec_id)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hide") as pool:
        files = tuple(pool.map(more_of, sorted(positions)))
    deletes = {path: of[path][0].deletes for path in positions}
    return Hidden(files=files, of={path: None if one is None else one.path for path, one in deletes.items()})


def _write(view: Table, data: LakeFile, positions: Positions, *, spec_id: int) -> DataFile:
    place = view.location_provider().new_data_location(f"{uuid4()}-deletes.parquet")
    written = write_deletes(view.io, place, data, positions, spec_id=spec_id)
    note_data_file(view.io, place, written.file_size_in_bytes)
    return written


def write_deletes(io: FileIO, place: str, data: LakeFile, positions: Positions, *, spec_id: int) -> DataFile:
    """Write at *place* which rows of *data*, a file of the partitioning *spec_id*, are hidden; sorted, each once."""
    count, path = len(positions), data.path
    target = io.new_output(place)
    table = pa.table([pa.repeat(pa.scalar(path), count), pa.array(positions)], schema=POSITIONS)
    with target.create() as stream:
        write_table(table, stream, use_dictionary=["file_path"])
    size = len(target)
    ends = [to_bytes(LongType(), int(positions[at])) for at in (0, -1)]
    told = to_bytes(StringType(), path)  # whole, not cut off: readers find the data file by it
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record() if data.partition is None else Record(data.partition),
        record_count=count,
        file_size_in_bytes=size,
        value_counts={PATH_ID: count, POSITION_ID: count},
        null_value_counts={PATH_ID: 0, POSITION_ID: 0},
        lower_bounds={PATH_ID: told, POSITION_ID: ends[0]},
        upper_bounds={PATH_ID: told, POSITION_ID: ends[1]},
        spec_id=spec_id,
    )
