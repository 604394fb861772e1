"""The public surface in Python: `connect` and `Harness`, which gives a `Table`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness_pipelines import faults
from harness_pipelines.app.table import Table
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from harness_pipelines.app.installation import Stores
    from harness_pipelines.ledgers.postgres.named_snapshots import NamedSnapshot
    from harness_pipelines.ledgers.postgres.states import States
    from harness_pipelines.ports.ledger import SickTable
    from harness_pipelines.read.waiting import Waits


def connect(settings: Settings | None = None, *, home: str | Path | None = None) -> Harness:
    """Open the harness that the environment describes (``HARNESS_DSN``, ``HARNESS_KAFKA``, ...).

    What is not set comes from the embedded services under *home*, if they run. Nothing is opened before it is used.

    Raises: UsageError when an address is missing.
    """
    chosen = settings or Settings.from_env(home=Path(home) if home else None)
    faults.arm_from(os.environ)
    if not all((chosen.dsn, chosen.kafka, chosen.spark, chosen.warehouse)):
        from harness_pipelines.services import Services

        found = Services.from_settings(chosen).endpoints()
        if found is not None:
            chosen = found.fill(chosen)
    from harness_pipelines.app.installation import Stores

    return Harness(Stores(chosen))


class Harness:
    """Tables of one installation. Use it as a context manager, or `close` it."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    @property
    def settings(self) -> Settings:
        return self.stores.settings

    @cached_property
    def waits(self) -> Waits:
        """Who waits for records of any table."""
        from harness_pipelines.read.waiting import Waits

        return Waits(self.stores.news, self.stores.tables)

    def init(self) -> list[str]:
        """Create the ledger, the catalog rows and the roles, or bring them up to date; returns what was applied."""
        from harness_pipelines.drivers.postgres import migrate

        return migrate(self.stores.owner_dsn)

    def apply(self, spec: str | Path | TableSpec) -> Table:
        """Create the table that *spec* (a file's path, or a `TableSpec`) describes, or take over changed settings.

        Raises: SpecError, TopicMissing, TableExists when a word differs that cannot change.
        """
        from harness_pipelines.stages.table.apply import apply_spec

        return Table(self, apply_spec(self.stores, spec))

    def table(self, name: str) -> Table:
        """The table called ``namespace.name``. Raises: TableUnknown."""
        return Table(self, self.stores.tables.table(name))

    def tables(self) -> list[Table]:
        """Those whose row in the ledger can be understood; `sick_tables` are the others."""
        return [Table(self, row) for row in self.stores.tables.tables()]

    def sick_tables(self) -> list[SickTable]:
        """Tables whose row in the ledger cannot be understood, with the reason: nobody works on them."""
        return self.stores.tables.survey()[1]

    def snapshot(self, name: str, tables: Sequence[str]) -> NamedSnapshot:
        """Name the state that *tables* have together at this instant: `read(at=name)` shows it until it is dropped.

        What is buffered belongs to it. Raises: SnapshotExists, TableUnknown, ValueError.
        """
        return self.stores.snapshots.create(name, [self.table(table).row for table in tables])

    def snapshots(self) -> list[NamedSnapshot]:
        """Every named snapshot, oldest first."""
        return self.stores.snapshots.all()

    def drop_snapshot(self, name: str) -> None:
        """Forget a snapshot; what only it needed is removed by expire. Raises: SnapshotUnknown, SnapshotInUse."""
        self.stores.snapshots.drop(name)

    def register_spark(self, spark: SparkSession) -> None:
        """Let *spark* know the source ``harness``: ``spark.readStream.format("harness").option("table", ...).load()``.

        As a stream its offsets are offset vectors and its rows those of `Table.stream`; as a batch (`spark.read`, and
        in SQL ``CREATE TEMP VIEW ... USING harness``) it has the rows of `Table.read`, of a new cut in each query. What
        only Kafka has comes once it is ingested. The settings, the password of the DSN among them, go to Spark.
        """
        from harness_pipelines.engines.spark.data_source import register
        from harness_pipelines.engines.spark.data_source_rows import OpenTables

        register(spark, OpenTables(self.settings.for_others()))

    @property
    def states(self) -> States:
        """Where consumers are with what they keep elsewhere; `read(at="state:NAME")` is the cut that agrees with it."""
        return self.stores.states

    def close(self) -> None:
        self.stores.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
