"""Drafts of cuts as a server makes them, for tests of what the ledger does with them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness_pipelines.ledgers.postgres.cuts import Cuts
from harness_pipelines.ports.ledger import ReadState, TableRow
from harness_pipelines.ports.serving.cuts import Cut, CutDraft, CutPart
from harness_pipelines.protocol.cuts import Chunk, cut_folder
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig

KEEP = timedelta(minutes=15)


@dataclass(kw_only=True)
class Server:
    """A server of one table: it looks, drafts what it saw, and publishes that."""

    real: RealRig
    table: TableRow
    cuts: Cuts
    state: ReadState | None = None
    newest: Cut | None = None

    def look(self, *, lease: timedelta = HOUR) -> Server:
        """The newest cut first, then the state: what the state shows is no older than the cut."""
        self.newest, *_ = self.cuts.newest(self.table)
        self.state = self.real.leases.look(self.table, holder="server", lease=lease)
        return self

    @property
    def folder(self) -> str:
        assert self.state is not None, "it looks first"
        return cut_folder(self.table.spec.name, self.state.version.stream.metadata)

    def draft(self, **changes: Any) -> CutDraft:
        assert self.state is not None, "it looks first"
        last, made = self.newest, uuid.uuid4()
        bounds = {p: (b.start, b.batch_hi, b.stream_hi, b.buffer_hi) for p, b in self.state.bounds.items()}
        metadata = f"{self.folder}/metadata/{made.hex}.metadata.json"
        chunk = chunk_at(f"{self.folder}/data/{made.hex}.parquet", sequence=last.sequence + 1 if last else 1)
        found = CutDraft(
            snapshot_id=made.int >> 66,
            sequence=last.sequence + 1 if last else 1,
            timestamp_ms=last.timestamp_ms + 1 if last and last.timestamp_ms else 1_700_000_000_000,
            version=self.state.version.version,
            schema_version=1,
            bounds=bounds,
            metadata=metadata,
            chunks=(chunk,),
            parts={"stream": CutPart(key="k", manifests="[]")},
            files=(metadata, chunk.path),
        )
        return replace(found, **changes)

    def publish(self, draft: CutDraft | None = None, *, keep: timedelta = KEEP, **words: Any) -> Cut:
        assert self.state is not None, "it looks first"
        given: Mapping[str, Any] = {
            "previous": self.newest.sequence if self.newest else None,
            "lease_id": self.state.lease_id,
            **words,
        }
        return self.cuts.publish(self.table, draft or self.draft(), keep=keep, **given)

    def cut(self, **words: Any) -> Cut:
        """All of it."""
        return self.look().publish(**words)

    def written(self, draft: CutDraft | None = None, *, bytes_each: int = 10) -> CutDraft:
        """A draft whose files are there."""
        found = draft or self.draft()
        for location in found.files:
            path = Path(urlsplit(location).path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(bytes_each))
        return found


def chunk_at(path: str, **changes: Any) -> Chunk:
    found = Chunk(path=path, ranges={0: (5, 9)}, rows=4, bytes=100, sequence=1, maker="schema 1", entry="{}")
    return replace(found, **changes)


def moved_table(real: RealRig) -> TableRow:
    """One partition: [0, 5) is in the stream view, [5, 9) in the buffer."""
    made = real.table(partitions=1)
    real.ingest(made, {0: (0, 9)})
    real.move(made, {0: 0}, {0: 5})
    return made


def rows_of(real: RealRig, table: TableRow) -> list[dict[str, Any]]:
    """What the ledger has of the cuts of *table*, by sequence."""
    return real.ask("SELECT * FROM harness.cuts WHERE table_id = %s ORDER BY sequence", [table.table_id])


def server_of(real: RealRig, table: TableRow) -> Server:
    return Server(real=real, table=table, cuts=Cuts(real.readers))
