"""The one place that opens and writes Parquet files of the lake.

Every page is written with a checksum, and every page that is read is compared with it. So a byte that changed on its
way through disks, memory or copies is an error and never another value. Iceberg's writer in Spark does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    ParquetFormatModel,
    ParquetFormatWriter,
    StatsAggregator,
    data_file_statistics_from_parquet_metadata,
)
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Properties
from pyiceberg.types import StringType

from harness_pipelines.lakes.iceberg.private.tables import dataframe_to_data_files, register
from harness_pipelines.protocol.lake.file_digests import Digest, FileDamaged, digest_of

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

ParquetFragment: TypeAlias = ds.ParquetFileFragment
ParquetFile: TypeAlias = pq.ParquetFile
Scanner: TypeAlias = ds.Scanner
MAGIC = b"PAR1"
CHUNK_BYTES = 8 * 2**20
HELD_BYTES_MAX = 256 * 2**20  #: rows as Arrow has them, that wait for their row group
PROBE_ROWS = 20_000  #: written once more to see how many bytes a row takes
PROBE_BYTES = 4 * 2**20  #: of these, as Arrow has them, that tell which columns have a dictionary
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(
        pre_buffer=True, buffer_size=8 * 2**20, page_checksum_verification=True
    )
)


def fragment_of(stream: Any) -> ParquetFragment:
    """The data file of *stream*, to be scanned."""
    return _FORMAT.make_fragment(stream)


def scanner_of(fragment: ParquetFragment, **options: Any) -> Scanner:
    """What reads *fragment*; *options* are those of Arrow's scanner."""
    return ds.Scanner.from_fragment(fragment, schema=fragment.physical_schema, **options)


def parquet_file(stream: Any) -> ParquetFile:
    """The data file of *stream*, to be read batch by batch."""
    return pq.ParquetFile(stream, page_checksum_verification=True)


def read_columns(stream: Any, columns: Sequence[str], *, repeated: Sequence[str] = ()) -> pa.Table:
    """Some columns of a small file; of *repeated* ones each text is kept once, as a dictionary."""
    return pq.read_table(stream, columns=list(columns), read_dictionary=list(repeated), page_checksum_verification=True)


def write_table(table: pa.Table, stream: Any, **options: Any) -> None:
    """Write a small file; *options* are those of Arrow's writer."""
    pq.write_table(table, stream, compression="zstd", write_page_checksum=True, **options)


def data_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> list[DataFile]:
    """Write *rows* to files of the table that *metadata* describes, of which nobody knows yet."""
    write_checksums()
    return list(dataframe_to_data_files(metadata, rows, io))


def text_above(text: str, length: int) -> str | None:
    """The shortest bound above all texts that begin like *text* in its first *length* characters.

    *text* itself, if it is no longer. None: no text is above, since all these characters are the last that there is.
    """
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        if (after := ord(text[end - 1]) + 1) <= sys.maxunicode:
            # Behind U+D7FF come halves of pairs in UTF-16, which are no characters.
            return text[: end - 1] + chr(_AFTER_SURROGATES if after == _FIRST_SURROGATE else after)
    return None


class _TextBounds(StatsAggregator):
    """PyIceberg's bounds of a text column, of which some upper ones would be no text."""

    def max_as_bytes(self) -> bytes | None:
        if self.trunc_length is None or not isinstance(self.current_max, str):
            return super().max_as_bytes()
        above = text_above(self.current_max, self.trunc_length)
        return None if above is None else self.serialize(above)


class _Writer(ParquetFormatWriter):
    """PyIceberg's writer, which has no property for checksums, with bounds of texts that are texts."""

    def __init__(self, output_file: OutputFile, file_schema: Schema, properties: Properties) -> None:
        super().__init__(output_file, file_schema, properties)
        self._parquet_writer_kwargs["write_page_checksum"] = True

    def close(self) -> DataFileStatistics:
        return _with_texts(super().close())


def _with_texts(found: DataFileStatistics) -> DataFileStatistics:
    """*found* with bounds of texts that are texts."""
    for bounds in found.column_aggregates.values():
        if isinstance(bounds, StatsAggregator) and bounds.primitive_type == StringType():
            bounds.__class__ = _TextBounds
    return found


def write_rows(
    rows: pa.Table, stream: Any, *, schema: pa.Schema, statistics: Mapping[int, Any], ids: Mapping[str, int]
) -> DataFileStatistics:
    """Write *rows* as one file in *schema*, which has Iceberg's field ids, and say what a manifest says of them.

    *statistics* and *ids* are PyIceberg's plan for the columns, and their ids by their paths in the file.

    Without dictionaries: a file of some thousand rows is written in half the time, and has two thirds of the bytes.
    What zstd makes of values that repeat is as short.
    """
    with pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=True,
        store_decimal_as_integer=True,
    ) as writer:
        writer.write_table(rows)
    return told_of_file(writer.writer.metadata, statistics=statistics, ids=ids)


#: As Iceberg's writer in Spark writes by default.
_AS_SPARK: Mapping[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "data_page_size": 2**20,
    "dictionary_pagesize_limit": 2 * 2**20,
    "max_rows_per_page": 20_000,
    "store_decimal_as_integer": True,
    "store_schema": False,
    "write_page_checksum": True,
    "write_page_index": True,
}


def worth_dictionaries(rows: pa.Table) -> list[str]:
    """The columns, by their paths in the file, whose first values are smaller with a dictionary.

    Spark's writer decides by the first page of a file; Arrow's keeps a dictionary of values that never repeat.
    """
    first = rows.slice(0, PROBE_ROWS)
    first = first.slice(0, max(1, PROBE_BYTES * first.num_rows // max(first.nbytes, 1)))
    with_them, without = (_column_bytes(first, use_dictionary=used) for used in (True, False))
    return [path for path, size in with_them.items() if size < without[path]]


def _column_bytes(rows: pa.Table, *, use_dictionary: bool) -> dict[str, int]:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, compression="none", use_dictionary=use_dictionary) as writer:
        writer.write_table(rows)
    footer = writer.writer.metadata
    columns = [footer.row_group(0).column(i) for i in range(footer.num_columns)] if footer.num_row_groups else []
    return {column.path_in_schema: column.total_uncompressed_size for column in columns}


class RowGroups:
    """Writes one data file as Spark does: a row group ends where it reaches some size. Memory is bounded.

    *schema* is that of the file, with Iceberg's field ids. A row group has at most `HELD_BYTES_MAX` of rows as Arrow
    has them, so rows that compress very well lie in more groups than Spark makes of them.
    """

    def __init__(self, stream: Any, schema: pa.Schema, *, group_bytes: int) -> None:
        self._stream, self._schema, self._group_bytes = stream, schema, group_bytes
        self._writer: pq.ParquetWriter | None = None
        self._dictionaries: list[str] | None = None
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0  #: held
        self._per_row: float | None = None  #: bytes in the file
        self.written = 0  #: rows

    def write(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
        while self._bytes >= min(self._group_bytes, HELD_BYTES_MAX) and self._rows >= (group := self._group_rows()):
            self._flush(group)

    def reaches(self, size: int) -> bool:
        """Whether the file would have *size* bytes if it ended now, about."""
        done = self._stream.tell()
        return bool(done + self._bytes >= size and done + self._rows * self._row_bytes() >= size)

    def close(self) -> Any:
        """End the file; returns what its footer says."""
        if self._rows:
            self._flush(self._rows)
        writer = self._writer or self._on(self._stream, None)
        writer.close()
        return writer.writer.metadata

    def _on(self, stream: Any, rows: pa.Table | None) -> pq.ParquetWriter:
        """A writer to *stream*; *rows* are the first ones of the file, None where it has none."""
        if self._dictionaries is None:
            self._dictionaries = [] if rows is None else worth_dictionaries(rows)
        return pq.ParquetWriter(stream, self._schema, use_dictionary=self._dictionaries, **_AS_SPARK)

    def _group_rows(self) -> int:
        """How many rows the group has that the held rows begin with."""
        fitting, holdable = self._group_bytes / self._row_bytes(), HELD_BYTES_MAX * self._rows / self._bytes
        return max(1, int(min(fitting, holdable)))

    def _row_bytes(self) -> float:
        """Of one row in the file, as its first rows are."""
        if self._per_row is None and self._rows:
            probe, sink = pa.concat_tables(self._held).slice(0, PROBE_ROWS), pa.BufferOutputStream()
            with self._on(sink, probe) as writer:
                writer.write_table(probe)
            group = writer.writer.metadata.row_group(0)
            size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            self._per_row = max(size / probe.num_rows, 0.01)
        return self._per_row or 0.0

    def _flush(self, count: int) -> None:
        rows = pa.concat_tables(self._held)
        self._writer = self._writer or self._on(self._stream, rows)
        self._writer.write_table(rows.slice(0, count), row_group_size=count)
        left = rows.slice(count)
        self._held, self._rows, self._bytes = ([left] if left.num_rows else []), left.num_rows, left.nbytes
        self.written += min(count, rows.num_rows)


def told_of_file(footer: Any, *, statistics: Mapping[int, Any], ids: Mapping[str, int]) -> DataFileStatistics:
    """What a manifest says of a file with *footer*; *statistics* and *ids* as in `write_rows`."""
    return _with_texts(data_file_statistics_from_parquet_metadata(footer, dict(statistics), dict(ids)))


class _Model(ParquetFormatModel):
    def create_writer(self, output_file: OutputFile, file_schema: Schema, properties: Properties) -> _Writer:
        return _Writer(output_file, file_schema, properties)


def write_checksums() -> None:
    """Let PyIceberg write a checksum with each page, in all that this process writes by it."""
    register(FileFormat.PARQUET, _Model())


@contextmanager
def damage_named(io: FileIO, path: str) -> Iterator[None]:
    """Tell a damaged file from a storage that does not answer, which Arrow does not.

    Raises: FileDamaged where the whole file can be read as bytes and yet not as Parquet; else what Arrow raised.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        why = _why_damaged(io, path)
        if why is None:
            raise
        raise FileDamaged(path, why) from error


def _why_damaged(io: FileIO, path: str) -> str | None:
    """What is wrong with the content of a file; None: nothing is."""
    with io.new_input(path).open() as stream:
        while stream.read(CHUNK_BYTES):  # OSError: the storage is away
            pass
        try:
            check_pages(stream)
        except (OSError, pa.ArrowException) as error:
            return str(error)
    return None


def check_pages(stream: Any) -> None:
    """Read all of a data file and keep nothing. Raises: OSError, pa.ArrowException for one that is damaged."""
    for _ in parquet_file(stream).iter_batches(batch_size=16_384):
        pass


def tail_of(stream: Any) -> Digest:
    """What a data file ends with: all behind its last page. Raises: OSError, pa.ArrowInvalid."""
    size = stream.size()
    start = _end_of_pages(parquet_file(stream).metadata)
    stream.seek(start)
    return Digest(size, size - start, digest_of(stream.read()))


def _end_of_pages(metadata: Any) -> int:
    end = len(MAGIC)
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for number in range(metadata.num_columns):
            column = columns.column(number)
            first = column.data_page_offset
            if column.has_dictionary_page and 0 < column.dictionary_page_offset < first:
                first = column.dictionary_page_offset
            end = max(end, first + column.total_compressed_size)
    return end
