"""Contents of one partition in each system, as offsets and row digests: 16 bytes a row.

Every side hands out ``[low, high)`` window by window in ascending order, so that memory stays bounded: by a few batches
of Kafka, by one data file of the lake ahead, and by a stretch of the buffer.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from harness_pipelines.drivers.conform import in_schema
from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import Schemas
from harness_pipelines.ports.decoded import decode_batch
from harness_pipelines.ports.errors import LakeFileBroken, LakeFileMissing, LakeUnreadable, ManifestDamaged, RecordsLost
from harness_pipelines.ports.lake import LakeFile, LakeReads, LakeView, judged
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.proof import LakeBytes, ProofBook
from harness_pipelines.ports.source import Log, PartitionBatch, above, below
from harness_pipelines.protocol.digest import as_first, lake_digests
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.lake.signoff import SignOff, covered
from harness_pipelines.protocol.schema.schemas import others
from harness_pipelines.read.digested import Rows, of_partition
from harness_pipelines.spec.arrow import COORDINATES, arrow_schema

if TYPE_CHECKING:
    from harness_pipelines.ports.source import LogReader

POLL_RECORDS = 65_536
SILENCE_S_MAX = 30.0
CHECKED_AT_ONCE = 4  #: files whose bytes are compared with their checksums
NAMED_MAX = 20  #: broken files in a message
#: What a spec may say otherwise today than when a record was taken.
_LENIENT = {
    "on_error": "quarantine", "unknown_fields": "ignore", "contract": None, "stop_above": None, "evolution": "manual",
}  # fmt: skip


class AuditStalled(TryAgain):
    """Kafka reported records but did not deliver them in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """A record in quarantine: why, and the SHA-256 of its raw value and key (None for a null)."""

    reason: str
    value: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogContents:
    """Read ``[known_from, high)`` from Kafka: the rows its records decode to, and the records that do not fit."""

    rows: Rows
    refused: Mapping[int, str]  #: offset -> reason and detail
    raw: Mapping[int, tuple[bytes | None, bytes | None]]  #: SHA-256 of value and key, where quarantine may hold it
    known_from: int  #: Kafka dropped what is below while the audit read

    def corrected(self, digests: Mapping[int, int | None], *, below: int) -> LogContents:
        """The same with what replays made of records, whatever decoder they used: a row's digest, or None: no row."""
        mine = {offset: digest for offset, digest in digests.items() if self.known_from <= offset < below}
        if not mine:
            return self
        others = ~np.isin(self.rows.offsets, list(mine))
        made = {offset: digest for offset, digest in mine.items() if digest is not None}
        theirs = Rows(np.array(sorted(made), np.int64), np.array([made[o] for o in sorted(made)], np.uint64))
        refused = {offset: why for offset, why in self.refused.items() if offset not in mine}
        refused |= {offset: "a replay set it aside" for offset in mine.keys() - made.keys()}
        return replace(
            self,
            rows=Rows.of([Rows(self.rows.offsets[others], self.rows.digests[others]), theirs]),
            refused=refused,
        )


@dataclass(slots=True)
class QuarantineSide:
    """Records that are quarantined."""

    proof: ProofBook
    lake_bytes: LakeBytes
    table: TableRow
    partition: int

    def window(self, low: int, high: int) -> dict[int, QuarantinedRecord]:
        """Records of ``[low, high)``; of bytes that are in the lake as the ledger knows them."""
        return self._held(self._rows(low, high))

    def read(self, low: int, high: int) -> dict[int, QuarantinedRecord]:
        """The same, with bytes that are in the lake read from there. Raises: as `LakeBytes`."""
        rows = self._rows(low, high)
        found = self._held(rows)
        # Of a head what is stored says nothing of the digest of the whole.
        moved = [(self.partition, row["offset"]) for row in rows if row["in_lake"] and row["whole"]]
        for (_, offset), raw in self.lake_bytes.read(self.table, moved) if moved else ():
            found[offset] = replace(found[offset], value=_sha256(raw["value"]), key=_sha256(raw["key"]))
        return found

    def _rows(self, low: int, high: int) -> Sequence[Mapping[str, Any]]:
        return self.proof.quarantined(self.table, self.partition, low, high)

    @staticmethod
    def _held(rows: Sequence[Mapping[str, Any]]) -> dict[int, QuarantinedRecord]:
        return {
            row["offset"]: QuarantinedRecord(reason=row["reason"], value=row["value_digest"], key=row["key_digest"])
            for row in rows
        }


@dataclass(slots=True, kw_only=True)
class KafkaSide:
    """The log, decoded by the table's codec.

    Fields that no column names are ignored here, whatever the spec says: the setting may have changed since, so both
    a row and a record in quarantine for that reason are right.
    """

    log: Log
    table: TableRow
    quarantine: QuarantineSide
    partition: int
    position: int
    schemas: Schemas
    _reader: LogReader | None = None
    _pending: list[Rows] = field(default_factory=list)
    _refused: dict[int, str] = field(default_factory=dict)
    _raw: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    _known_from: int = 0
    _decoders: dict[int, tuple[TableRow, RecordCodec]] = field(default_factory=dict)  #: by schema version

    def window(self, low: int, high: int) -> LogContents:
        """All records of ``[low, high)``; calls must ascend, and may leave gaps, which are not read.

        Raises: AuditStalled and what the log raises.
        """
        self._skip_to(low)
        while self.position < high:
            try:
                for batch in self._poll():
                    self._take(batch)
            except RecordsLost as lost:  # retention continues while we read
                self._known_from = self.position = lost.log_start
                self.close()
        below, above = Rows.of(self._pending).split(high)
        self._pending = [above]
        return LogContents(
            rows=below,
            refused=_popped(self._refused, high),
            raw=_popped(self._raw, high),
            known_from=min(max(low, self._known_from), high),
        )

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _skip_to(self, low: int) -> None:
        """Forget what is below *low*, and continue there."""
        self._pending = [Rows.of(self._pending).split(low)[1]]
        _popped(self._refused, low)
        _popped(self._raw, low)
        if self.position < low:
            self.close()
            self.position = low

    def _poll(self) -> list[PartitionBatch]:
        if self._reader is None:
            topic = self.table.spec.topic
            self._reader = self.log.reader(topic, {self.partition: self.position}, identity=self.table.identity)
        heard = time.monotonic()
        while True:
            batches = self._reader.poll(POLL_RECORDS, 0.5)
            if batches:
                return batches
            if time.monotonic() - heard > SILENCE_S_MAX:
                raise AuditStalled(
                    f"{self.table.name}: no record of partition {self.partition} from offset {self.position} for "
                    f"{SILENCE_S_MAX:g} s; nothing was judged, run the audit again"
                )

    def _take(self, batch: PartitionBatch) -> None:
        refused: set[int] = set()
        for schema_version, part in in_schemas(self.table, batch):
            lenient, codec = self._decoder(schema_version)
            decoded = decode_batch(lenient, codec, part)
            rows = as_first(self._of_now(decoded.rows, lenient), self.table)
            digests = lake_digests(rows, schema_version=schema_version)
            self._pending.append(Rows(rows.column("_kafka_offset").to_numpy(), digests))
            self._refused |= {r.offset: f"{r.reason}: {r.detail}" for r in decoded.refused}
            refused |= {r.offset for r in decoded.refused}
        for offset in {*self.quarantine.window(batch.low, batch.high), *refused}:
            at = int(np.searchsorted(batch.offsets, offset))
            if at < len(batch) and batch.offsets[at] == offset:
                self._raw[offset] = (_sha256(batch.values[at]), _sha256(batch.keys[at]))
        self.position = batch.high

    def _decoder(self, schema_version: int) -> tuple[TableRow, RecordCodec]:
        if (found := self._decoders.get(schema_version)) is None:
            then = self.table.at_schema(schema_version)
            then = replace(then, spec=then.spec.model_copy(update=_LENIENT))
            found = self._decoders[schema_version] = then, RecordCodec(then.spec, self.schemas)
        return found

    def _of_now(self, rows: pa.Table, then: TableRow) -> pa.Table:
        """*rows* that were decoded with an older schema in that of now, as ingest's are read."""
        if then.schema_version == self.table.schema_version:
            return rows
        kept = [f for f in rows.schema if f.name in COORDINATES.names]
        wanted = pa.schema([*kept, *arrow_schema(self.table.spec.stored)])
        return in_schema(rows, others(self.table.fields, then.fields), wanted)


def in_schemas(table: TableRow, batch: PartitionBatch) -> Iterator[tuple[int, PartitionBatch]]:
    """The parts of *batch*, each with the version of the schema that its records are decoded with."""
    starts = [schema.starts.get(batch.partition, 0) for schema in table.history[1:]]
    cuts = [batch.low, *(start for start in starts if batch.low < start < batch.high), batch.high]
    for low, high in pairwise(dict.fromkeys(cuts)):
        yield table.decoded_with(batch.partition, low), above(below(batch, high), low)


def _popped(held: dict[int, Any], high: int) -> dict[int, Any]:
    return {offset: held.pop(offset) for offset in sorted(o for o in held if o < high)}


def _sha256(value: bytes | None) -> bytes | None:
    return None if value is None else hashlib.sha256(value).digest()


class LakeSide:
    """The rows of one partition in the view that tier writes, those outside of its bounds and doubles included.

    Each file is read once and whole; with `views: batch` a file mixes partitions, and those of others are left out.
    A file of which every offset lies in a range of *signed* is not opened.
    This is no bounded read on purpose: a file is opened because a manifest names it, and what counts is what it holds.
    """

    def __init__(
        self,
        table: TableRow,
        view: LakeView,
        partition: int,
        *,
        signed: Sequence[SignOff] = (),
    ) -> None:
        self._table, self._view, self._partition = table, view, partition
        runs = {file.path: run for file in view.files if (run := file.run_of(partition)) is not None}
        self._runs = runs
        self.files = sorted((file for file in view.files if file.path in runs), key=lambda file: runs[file.path][0])
        self.needed = [file for file in self.files if not covered(*runs[file.path], signed)]
        self._unread = deque(self.needed)
        self._ahead: Future[Rows] | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit-lake")
        self._pending: list[Rows] = []

    def below(self, high: int) -> Rows:
        """All rows below *high* that no earlier call has returned; their files may say otherwise about offsets."""
        while self._unread and self._runs[self._unread[0].path][0] < high:
            self._unread.popleft()
            self._pending.append(self._next())
        below, above = Rows.of(self._pending).split(high)
        self._pending = [above]
        return below

    def rest(self) -> Rows:
        """All rows that no call has returned yet."""
        return self.below(2**63 - 1)

    def names(self, offset: int) -> list[str]:
        """The files whose manifest entries cover *offset*."""
        covering = (path for path, (low, high) in self._runs.items() if low <= offset < high)
        return [path.rsplit("/", 1)[-1] for path in covering]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _next(self) -> Rows:
        """The file that was taken from the queue; the one behind it is read meanwhile."""
        current = self._ahead or self._submit(len(self.needed) - len(self._unread) - 1)
        rows = current.result()
        self._ahead = self._submit(len(self.needed) - len(self._unread)) if self._unread else None
        return rows

    def _submit(self, number: int) -> Future[Rows]:
        return self._pool.submit(self._read, self.needed[number])

    def _read(self, file: LakeFile) -> Rows:
        with judged(self._table, file):
            tables = self._view.rows(self._table, file)
            return Rows.of([Rows.from_arrow(self._own(table) if file.partition is None else table) for table in tables])

    def _own(self, table: pa.Table) -> pa.Table:
        return of_partition(table, self._partition)


def judged_view(lake: LakeReads, table: TableRow, metadata: str) -> LakeView:
    """What *metadata* and its manifests name. Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable."""
    try:
        return lake.view(metadata)
    except FileNotFoundError as error:
        raise LakeFileMissing(
            f"{table.name}: {metadata}, or a manifest that it names, is gone ({error}); nothing was judged. "
            f"`harness fsck {table.name}` names all that is missing"
        ) from error
    except (ManifestDamaged, FileDamaged, pa.ArrowInvalid) as error:
        raise LakeFileBroken(f"{table.name}: {error}; nothing was judged") from error
    except OSError as error:
        raise LakeUnreadable(f"{table.name}: {metadata} cannot be read: {error}; nothing was judged") from error


def check_pages_of(table: TableRow, view: LakeView, files: Iterable[LakeFile], *, step: Callable[[int], None]) -> None:
    """Compare each page of *files* with its checksum; *step* is called for each file.

    Raises: LakeFileBroken, which names them; LakeFileMissing, LakeUnreadable.
    """

    def wrong(file: LakeFile) -> str | None:
        try:
            with judged(table, file):
                for one in (file, file.deletes):
                    if one is not None:
                        view.check_bytes(one.path)
        except LakeFileBroken as error:
            return str(error)
        return None

    with ThreadPoolExecutor(CHECKED_AT_ONCE, thread_name_prefix="bytes") as pool:
        broken = []
        for said in pool.map(wrong, files):
            step(0)
            broken += [said] if said is not None else []
    if broken:
        more = f"; {len(broken) - NAMED_MAX:,} more" if len(broken) > NAMED_MAX else ""
        raise LakeFileBroken("; ".join(broken[:NAMED_MAX]) + more)
