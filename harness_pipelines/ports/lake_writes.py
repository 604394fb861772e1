"""The port through which flows write the lake.

Files go to the branch of an attempt, which no reader reads. `build_*` writes metadata that nothing names yet: the
ledger publishes it in its boundary commit. What the lake alone can read is opaque here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.layout.files import FileStats, Positions
    from harness_pipelines.ports.lake import DeleteFile, LakeFile, Staged
    from harness_pipelines.ports.ledger import Swap, TableRow
    from harness_pipelines.protocol.claims import Claim
    from harness_pipelines.protocol.lake.overlays import Overlay
    from harness_pipelines.protocol.moves import Move
    from harness_pipelines.protocol.schema.evolution import Evolved
    from harness_pipelines.protocol.versions import Version, View, ViewName
    from harness_pipelines.spec.table import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hidden:
    """What an attempt hides in data files that stay."""

    files: tuple[Any, ...] = ()  #: one delete file for each, as the lake describes it
    of: Mapping[str, str | None] = field(default_factory=dict)  #: data file -> its delete file until now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileList:
    """The files of the batch view that one manifest names. What a manifest names never changes."""

    files: tuple[FileStats, ...]  #: as if none of their rows were hidden
    deletes: Mapping[str, DeleteFile]  #: what hides rows, by the data file, which another list may have


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileLists:
    """The live files of the batch view, by the paths of the manifests that name them."""

    columns: tuple[tuple[int, str], ...]  #: ids and types of those whose bounds the files have
    lists: Mapping[str, FileList]


class ForeignChange(Protocol):
    """The difference that other writers made in a view."""

    @property
    def files(self) -> int:
        """How many were added."""
        ...

    @property
    def rows(self) -> int:
        """How many these have."""
        ...

    @property
    def removed(self) -> Sequence[str]:
        """Files of the table that are no longer live, and deletes that were added or removed."""
        ...

    def replaced(self, *, move_id: int, nonce: str, first: int, schema_version: int) -> View:
        """The view with the added rows in the pseudo-partition, from offset *first* on; nothing names it yet.

        Raises: LakeAway.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replacement:
    """What one snapshot changes."""

    removed: Mapping[str, str | None]  #: path of each data file that goes -> of its delete file, which goes along
    added: Sequence[Any]  #: `Staged.written`
    hidden: Hidden = field(default_factory=Hidden)  #: in data files that stay
    same_rows: bool  #: none is added, none is lost
    sequence: int | None = None  #: data sequence number of what is added; None: that of the snapshot


class NewViews(Protocol):
    """Empty views, which a table is created with."""

    def make_views(
        self, spec: TableSpec, fields: Sequence[Mapping[str, Any]], *, origin: Mapping[str, str] | None = None
    ) -> tuple[dict[ViewName, View], list[Mapping[str, Any]]]:
        """The views, and *fields* with the ids that they have there; *origin* says where the rows come from."""
        ...

    def make_batch_view(
        self, spec: TableSpec, fields: Sequence[Mapping[str, Any]], *, stream: str, origin: Mapping[str, str]
    ) -> View:
        """An empty batch view whose columns have the ids that they have in the view of the metadata file *stream*."""
        ...


class AttemptFiles(Protocol):
    """Data files of one attempt, which no reader sees yet."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view, in order, by name and in the types of its files."""
        ...

    @property
    def is_partitioned(self) -> bool:
        """Whether a file may have rows of one partition alone."""
        ...

    def write(self, tables: Iterable[pa.Table], *, partition: int | None = None, file_bytes: int | None = None) -> None:
        """Write rows that have these columns, in any order of columns, in the order given, to one file.

        A file that reaches *file_bytes*, or what the view's properties say, is followed by another one. *partition* is
        that of all rows, in a view that is partitioned; without rows there is no file. Memory is bounded.
        Raises: StagedWrong for rows that do not fit; LakeAway.
        """
        ...


class AttemptWrites(Protocol):
    """How an engine of this process writes what an attempt stages."""

    def writing(self, table: TableRow, move: Move) -> AbstractContextManager[AttemptFiles]:
        """Files that one snapshot of the attempt's branch names once the context ends without an error.

        Raises: LakeAway, TableUnknown, MetadataMissing.
        """
        ...


class Attempts(AttemptWrites, Protocol):
    """Branches, what attempts write to them, and what others wrote."""

    def pointer(self, table: TableRow, view: ViewName) -> str:
        """The metadata file that the catalog names, which can be read. Raises: TableUnknown, MetadataMissing."""
        ...

    def main_snapshot(self, table: TableRow, *, view: ViewName = "stream") -> int:
        """The snapshot that the catalog's main branch names; -1 in a view without any."""
        ...

    def foreign_files(self, table: TableRow, *, pointer: str, published: str) -> ForeignChange | None:
        """What other writers changed in the stream view between two metadata files; None: main is the same."""
        ...

    def make_branch(self, table: TableRow, move: Move, base: View) -> str:
        """Create the branch of an attempt. Raises: BaseGone, LakeAway."""
        ...

    def append_to_branch(self, table: TableRow, move: Move, rows: pa.Table) -> None:
        """Write *rows* to the branch of an attempt. Raises: StagedWrong, LakeAway."""
        ...

    def staged(self, table: TableRow, move: Move, *, rows: int) -> Staged:
        """What the attempt staged, checked from metadata against its move. Raises: StagedWrong."""
        ...

    def is_staged(self, table: TableRow, move: Move) -> bool:
        """Return whether the branch holds what the attempt wrote. Raises: TableUnknown, MetadataMissing."""
        ...

    def drop_branches(
        self, table: TableRow, dead: Sequence[str], *, view: ViewName = "stream", claim: Claim | None = None
    ) -> bool:
        """Remove the branches of dead attempts; False if the pointer moved meanwhile. Raises: FencedOut, BuiltGone."""
        ...


class Builds(Protocol):
    """Metadata of a change on top of the metadata file *base*; of the snapshots the newest *keep* stay."""

    def build_append(
        self,
        table: TableRow,
        move: Move,
        staged: Staged,
        *,
        base: str,
        keep: int,
        overlays: Sequence[Overlay] | None = None,
    ) -> Swap:
        """The staged files, added. Raises: ForeignFiles."""
        ...

    def build_replace(
        self, table: TableRow, move: Move, staged: Staged, *, removed: Mapping[str, str | None], base: str, keep: int
    ) -> Swap:
        """The staged files in place of those of *removed*, which have the same rows. Raises: FilesGone."""
        ...

    def build_change(
        self,
        table: TableRow,
        move: Move,
        change: Replacement,
        *,
        base: str,
        keep: int,
        overlays: Sequence[Overlay] | None = None,
    ) -> Swap:
        """Any change of files. Raises: FilesGone."""
        ...

    def build_correction(
        self,
        table: TableRow,
        move_id: int,
        rows: pa.Table,
        *,
        view: ViewName,
        base: str,
        hidden: Mapping[str, Positions],
    ) -> Swap:
        """*rows* at coordinates below the bounds of *view*. Raises: AlreadyThere, FilesGone, LakeAway."""
        ...

    def build_revert(
        self, table: TableRow, move_id: int, name: ViewName, *, base: str, head: Version, target: Version, keep: int
    ) -> Swap:
        """The files of *target* as the newest snapshot. Raises: MetadataMissing, SnapshotMissing."""
        ...


class BatchFiles(Protocol):
    """Files of the batch view that a metadata file fixes. Every method raises: LakeAway."""

    def region_files(self, table: TableRow, metadata: str) -> list[FileStats]:
        """As the region tree sees them."""
        ...

    def region_lists(self, table: TableRow, metadata: str, *, known: FileLists | None = None) -> FileLists:
        """The same files by the manifests that name them. Those of *known*, an earlier answer, are not read again."""
        ...

    def key_files(self, table: TableRow, metadata: str) -> list[FileStats]:
        """With the bounds of the key's columns instead."""
        ...

    def staged_regions(self, table: TableRow, staged: Staged) -> list[FileStats]: ...

    def sequence_of(self, table: TableRow, metadata: str) -> int:
        """The data sequence number of the newest snapshot."""
        ...

    def hide(
        self, table: TableRow, metadata: str, positions: Mapping[str, Positions], *, view: ViewName = "batch"
    ) -> Hidden:
        """Write delete files for rows, by data file; no reader sees them yet."""
        ...


class LakeWrites(NewViews, Attempts, Builds, BatchFiles, Protocol):
    """Writes the views of one warehouse."""


class SchemaBuilds(Protocol):
    """Changes of the schema of views."""

    def next_field_id(self, table: TableRow) -> int:
        """An id that no view of *table* has used: a column has the same in all of them."""
        ...

    def build(self, table: TableRow, evolved: Evolved, *, move_id: int, view: ViewName, base: str) -> Swap:
        """The metadata of *view* with the fields of *evolved*, on top of *base*. Raises: LakeAway, MetadataMissing."""
        ...


class RepairBuilds(Protocol):
    """Metadata in which a damaged file is replaced."""

    def build_file(
        self, table: TableRow, move_id: int, rows: pa.Table, file: LakeFile, *, view: ViewName, base: str
    ) -> Swap:
        """*rows* in place of *file* and its delete file. Raises: FilesGone, LakeAway."""
        ...

    def build_metadata(
        self, table: TableRow, move_id: int, *, view: ViewName, head: Version, known: Sequence[str], pointer: str
    ) -> Swap:
        """What *head* pins of *view*, on top of the first of *known* that can be read.

        *known* are metadata files of the view with the schema of *head*, the newest first.
        Raises: MetadataMissing, ManifestDamaged, LakeAway.
        """
        ...
