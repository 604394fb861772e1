"""A table over real files and a real Postgres, moved by hand, and its cuts: what cuts are tested on without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.app.installation import Stores
from harness_pipelines.audit.fsck import cuts
from harness_pipelines.audit.fsck.rule import RULES, Look
from harness_pipelines.drivers import files
from harness_pipelines.faults import FaultInjected
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.table_state import TableStates
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap
from harness_pipelines.ports.serving.cuts import Cut
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.read.cut import Cutter
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig, rows_at
from harness_pipelines_tests.engines import READERS

HOUR = timedelta(hours=1)
Row = tuple[int, int, str | None]  #: partition, offset, value


class CutWorld:
    """A table whose record at each offset is a row with this offset as id."""

    def __init__(self, rig: RealRig, folder: Path, **spec: Any) -> None:
        self.rig, self.folder = rig, folder
        self.row = rig.table(files=True, **spec)
        self.stores = self.opened()
        self.table = hp.Harness(self.stores).table(self.row.name)
        self.cutter = self.server()

    def opened(self) -> Stores:
        warehouse = self.rig.lake.warehouse  # type: ignore[attr-defined]
        return Stores(Settings(home=self.folder, dsn=self.rig.dsn, warehouse=warehouse, catalog_name=CATALOG))

    def server(self) -> Cutter:
        """Another server: one that knows nothing, and takes no cut that was there before for the state of now."""
        self.pause()
        return Cutter(self.stores, holder="test", keep=HOUR, every=timedelta(0))

    @property
    def key(self) -> str:
        """A column of whole numbers that each row has."""
        return "id"

    @property
    def head(self) -> Version:
        return self.stores.ledger.head(self.row)

    def ingest(self, to: Mapping[int, int]) -> None:
        at = {p: position.buffer_hi for p, position in self.stores.segments.positions(self.row).items()}
        self.rig.ingest(self.row, {p: (at[p], high) for p, high in to.items()})

    def tier(self, to: Mapping[int, int], *, files: int = 1) -> None:
        self._moves(Stage.TIER, self.head.tiered, "stream_hi", to, files=files)

    def merge(self, to: Mapping[int, int], *, files: int = 1) -> None:
        self._moves(Stage.OTREE, "batch", "batch_hi", to, files=files)

    def _moves(self, stage: Stage, view: ViewName, bound: str, to: Mapping[int, int], *, files: int) -> None:
        """Move up to *to* by as many moves as there are to be files of each partition, or of the batch view."""
        at = {p: getattr(self.head.bounds[p], bound) for p in to}
        for number in range(1, files + 1):
            self._move(stage, view, bound, {p: at[p] + (to[p] - at[p]) * number // files for p in to})

    def _move(self, stage: Stage, view: ViewName, bound: str, to: Mapping[int, int]) -> None:
        rig, row, head = self.rig, self.row, self.head
        claim = rig.claim(row, stage)
        lo = {p: getattr(head.bounds[p], bound) for p in to}
        draft = MoveDraft(
            stage=stage, shard=0, lo=lo, hi=to, base_version=head.version, schema_version=1, trigger="test"
        )
        move = rig.ledger.plan_move(claim, draft)
        self.stores.lake.make_branch(row, move, head.views[view])
        rows = pa.concat_tables([self._lake_rows(p, list(range(lo[p], to[p]))) for p in to])
        self.stores.lake.append_to_branch(row, move, rows)
        staged = self.stores.lake.staged(row, move, rows=rows.num_rows)

        def build(base: str) -> Swap:
            return self.stores.lake.build_append(row, move, staged, base=base, keep=50)

        rig.ledger.publish(row, Boundary(claim=claim, move=move, rows=rows.num_rows, bytes=1), build)
        rig.ledger.release(claim)

    def _lake_rows(self, partition: int, offsets: list[int]) -> pa.Table:
        rows = rows_at(partition, offsets, self.row.spec)
        rows = rows.append_column("_op", pa.repeat(pa.scalar("put"), rows.num_rows))
        return rows.append_column("_schema_version", pa.repeat(pa.scalar(1, pa.int32()), rows.num_rows))

    # -- cuts -----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let the newest cut be no longer so young that it is given out without a look."""
        earlier = "UPDATE harness.cuts SET looked_at = looked_at - interval '1 minute' WHERE table_id = %s"
        self.rig.ask(earlier, [self.row.table_id])

    def cut(self) -> Cut:
        self.pause()
        return self.cutter.load(self.table.row).cut

    def truth(self) -> Counter[Row]:
        found = self.table.read(columns=["_kafka_partition", "_kafka_offset", "s"])
        return rows_of(found)

    def seen(self, cut: Cut, engine: str = "PyIceberg") -> Counter[Row]:
        """What an engine finds in a cut."""
        return rows_of(READERS[engine](cut.metadata, f"{self.key} >= 0"))

    def files(self) -> set[str]:
        """The files in the folders of cuts."""
        rows = self.rig.ask("SELECT folder FROM harness.cut_folders WHERE table_id = %s", [self.row.table_id])
        folders = [Path(urlsplit(row["folder"]).path) for row in rows]
        return {one.as_uri() for folder in folders for one in folder.rglob("*") if one.is_file()}

    def fsck(self) -> dict[str, list[str]]:
        """What fsck finds of cuts, by invariant."""
        states = TableStates(self.rig.database, CATALOG)
        books = states.books(self.row.name)
        stores: Any = SimpleNamespace(files=files, table_states=states, cut_files=self.stores.cut_files)
        look = Look(books=books, surveys=None, log=None, cut_files=cuts.seen_in(books, stores))
        named = [rule for rule in RULES if rule.invariant.startswith("F") and not rule.missing(look)]
        return {rule.invariant: seen for rule in named if (seen := [one.detail for one in rule.check(look)])}

    def assert_exact(self, cut: Cut, engine: str = "PyIceberg") -> None:
        """An engine gives the rows of a read of now."""
        assert self.seen(cut, engine) == self.truth()


def dies(load: Callable[[], object], point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load ends at *point*, and gives nothing back, as a process that was killed does not."""

    def die() -> None:
        raise FaultInjected(point)

    faults.arm(point, die)
    with monkeypatch.context() as killed:
        killed.setattr(Leases, "end", lambda *_: None)
        with pytest.raises(FaultInjected, match=point):
            load()
    faults.disarm()


def rows_of(table: pa.Table) -> Counter[Row]:
    columns = [table.column(name).to_pylist() for name in ("_kafka_partition", "_kafka_offset", "s")]
    return Counter(zip(*columns, strict=True))
