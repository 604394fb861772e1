"""How a flow says which ports it uses: it names them, and takes any object that has them.

`class Ports(HasLedger, HasLog, Protocol)` in a flow is what its functions take; the composition root in `app` has them
all, and a test may hand in an object with just these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.drivers.postgres import Database
    from harness_pipelines.formats.schema.registry import Schemas
    from harness_pipelines.ports.buffer import BufferReads, BufferWriter, Newest, OverlayTables, SizedSegments
    from harness_pipelines.ports.corrections import CorrectionBook, SchemaChanges
    from harness_pipelines.ports.engine import Engine
    from harness_pipelines.ports.events import News
    from harness_pipelines.ports.files import FileStore
    from harness_pipelines.ports.lake import LakeReads, MirrorBook, MirrorOpener
    from harness_pipelines.ports.lake_writes import LakeWrites, RepairBuilds, SchemaBuilds
    from harness_pipelines.ports.ledger import Ledger, ReadLeases, TableRow
    from harness_pipelines.ports.proof import LakeBytes, LineageBook, ProofBook, Signatures, StateDump
    from harness_pipelines.ports.repair import (
        ClaimsAndMoves,
        Guard,
        LakeHistories,
        LossBook,
        Reconciling,
        WarehouseMark,
    )
    from harness_pipelines.ports.requests import RecallRequests, ReclusterRequests
    from harness_pipelines.ports.serving.cuts import CutBook, CutFiles
    from harness_pipelines.ports.serving.keys import BatchKeys
    from harness_pipelines.ports.serving.tokens import TokenBook
    from harness_pipelines.ports.source import Log
    from harness_pipelines.ports.upkeep import CostNotes, Expiry, Folding, LogNotes, QuarantineMover, StallNotes
    from harness_pipelines.protocol.bounds import OffsetRange
    from harness_pipelines.protocol.changes.corrections import Wanted
    from harness_pipelines.protocol.claims import Claim
    from harness_pipelines.protocol.lake.history import NamedMove
    from harness_pipelines.protocol.reading.plan import SegmentRef
    from harness_pipelines.spec.settings import Settings
    from harness_pipelines.spec.table import TableSpec


class HasBufferReader(Protocol):
    @property
    def buffer_reader(self) -> BufferReads:
        """Reads segments in this process."""
        ...


class HasBatchKeys(Protocol):
    @property
    def batch_keys(self) -> BatchKeys:
        """See `BatchKeys`."""
        ...


class HasCutFiles(Protocol):
    @property
    def cut_files(self) -> CutFiles:
        """See `CutFiles`."""
        ...


class HasCuts(Protocol):
    @property
    def cuts(self) -> CutBook:
        """See `CutBook`."""
        ...


class HasEngine(Protocol):
    @property
    def engine(self) -> Engine:
        """Does the bulk work of stages."""
        ...


class HasFiles(Protocol):
    @property
    def files(self) -> FileStore:
        """See `FileStore`."""
        ...


class HasGlances(Protocol):
    @property
    def glances(self) -> Newest:
        """See `Newest`."""
        ...


class HasLake(Protocol):
    @property
    def lake(self) -> LakeWrites:
        """Writes the views."""
        ...


class HasLakeReads(Protocol):
    @property
    def lake_reads(self) -> LakeReads:
        """Reads the views."""
        ...


class HasLakeBytes(Protocol):
    @property
    def lake_bytes(self) -> LakeBytes:
        """See `LakeBytes`."""
        ...


class HasLakeHistories(Protocol):
    @property
    def lake_histories(self) -> LakeHistories:
        """See `LakeHistories`."""
        ...


class HasLakeRepairs(Protocol):
    @property
    def lake_repairs(self) -> RepairBuilds:
        """See `RepairBuilds`."""
        ...


class HasLakeSchemas(Protocol):
    @property
    def lake_schemas(self) -> SchemaBuilds:
        """See `SchemaBuilds`."""
        ...


class HasLeases(Protocol):
    @property
    def leases(self) -> ReadLeases:
        """See `ReadLeases`."""
        ...


class HasLedger(Protocol):
    @property
    def ledger(self) -> Ledger:
        """As a worker may use it."""
        ...


class HasLog(Protocol):
    @property
    def log(self) -> Log:
        """The source of records."""
        ...


class HasLosses(Protocol):
    @property
    def losses(self) -> LossBook:
        """See `LossBook`."""
        ...


class HasNews(Protocol):
    @property
    def news(self) -> News:
        """What other processes announce."""
        ...


class HasMirrors(Protocol):
    @property
    def mirrors(self) -> MirrorBook:
        """See `MirrorBook`."""
        ...

    @property
    def foreign_catalog(self) -> MirrorOpener:
        """Opens the catalogs of a spec."""
        ...


class HasOverlays(Protocol):
    @property
    def overlays(self) -> OverlayTables:
        """See `OverlayTables`."""
        ...


class HasOverview(Protocol):
    @property
    def overview(self) -> ClaimsAndMoves:
        """See `ClaimsAndMoves`."""
        ...


class HasOwnership(Protocol):
    @property
    def ownership(self) -> WarehouseMark:
        """See `WarehouseMark`."""
        ...


class HasProof(Protocol):
    @property
    def proof(self) -> ProofBook:
        """See `ProofBook`."""
        ...


class HasRawBytes(Protocol):
    @property
    def raw_bytes(self) -> QuarantineMover:
        """See `QuarantineMover`."""
        ...


class HasReaders(Protocol):
    @property
    def readers(self) -> Database:
        """Sessions of a reader."""
        ...


class HasRecalls(Protocol):
    @property
    def recalls(self) -> RecallRequests:
        """See `RecallRequests`."""
        ...


class HasReclusters(Protocol):
    @property
    def reclusters(self) -> ReclusterRequests:
        """See `ReclusterRequests`."""
        ...


class HasReconciler(Protocol):
    @property
    def reconciler(self) -> Reconciling:
        """See `Reconciling`."""
        ...


class HasSchemas(Protocol):
    @property
    def schemas(self) -> Schemas:
        """The schema registry."""
        ...


class HasSegments(Protocol):
    @property
    def segments(self) -> SizedSegments:
        """See `SizedSegments`."""
        ...


class HasSettings(Protocol):
    @property
    def settings(self) -> Settings:
        """See `Settings`."""
        ...


class HasSignOffs(Protocol):
    @property
    def sign_offs(self) -> Signatures:
        """See `Signatures`."""
        ...


class HasStalls(Protocol):
    @property
    def stalls(self) -> StallNotes:
        """See `StallNotes`."""
        ...


class HasCosts(Protocol):
    @property
    def costs(self) -> CostNotes:
        """See `CostNotes`."""
        ...


class HasGuard(Protocol):
    @property
    def guard(self) -> Guard:
        """See `Guard`."""
        ...


class HasTableStates(Protocol):
    @property
    def table_states(self) -> StateDump:
        """See `StateDump`."""
        ...


class HasTables(Protocol):
    @property
    def tables(self) -> Ledger:
        """The ledger as a reader may use it."""
        ...


class HasTokens(Protocol):
    @property
    def tokens(self) -> TokenBook:
        """See `TokenBook`."""
        ...


class HasHistoryFold(Protocol):
    @property
    def history_fold(self) -> Folding:
        """See `Folding`."""
        ...


class HasUpkeep(Protocol):
    @property
    def upkeep(self) -> Expiry:
        """See `Expiry`."""
        ...


class HasWarehouse(Protocol):
    @property
    def warehouse(self) -> str:
        """The folder of the lake."""
        ...


class HasWatch(Protocol):
    @property
    def watch(self) -> LogNotes:
        """See `LogNotes`."""
        ...


class HasBufferRows(Protocol):
    def buffer_rows(
        self, table: TableRow, segments: Sequence[SegmentRef], ranges: Sequence[OffsetRange]
    ) -> dict[int, int]: ...


class HasBufferWriter(Protocol):
    def buffer_writer(
        self, table: TableRow, claim: Callable[[], Claim], *, run_id: str | None = None
    ) -> BufferWriter: ...


class HasClose(Protocol):
    def close(self) -> None: ...


class HasCorrections(Protocol):
    def corrections(self, table: TableRow) -> CorrectionBook: ...


class HasEvolutions(Protocol):
    def evolutions(self, table: TableRow) -> SchemaChanges: ...


class HasLineage(Protocol):
    def lineage(self, table: TableRow) -> LineageBook: ...


class HasLostMoves(Protocol):
    def lost_moves(self, table: TableRow) -> list[NamedMove]: ...


class HasOverlayRows(Protocol):
    def overlay_rows(self, spec: TableSpec, overlays: Iterable[SegmentRef], partitions: Iterable[int]) -> pa.Table: ...


class HasSetAside(Protocol):
    def set_aside(self, table: TableRow, wanted: Wanted, *, limit: int) -> list[Mapping[str, Any]]: ...
