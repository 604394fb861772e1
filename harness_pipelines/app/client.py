"""The public Python API: `connect` and `Harness`, which returns a `Table`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
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


def connect(settings: Settings | None = None, *, home: str | Path | None = None, profile: str | None = None) -> Harness:
    """Open the harness that the environment describes (``HARNESS_DSN``, ``HARNESS_KAFKA``, ...).

    *profile* of `harness.toml`, or its default, adds variables. Unset ones use the embedded services under *home*, if
    they run. Connections open on first use.

    Raises: UsageError if an address is missing.
    """
    chosen = settings or Settings.from_env(home=Path(home) if home else None, profile=profile)
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
        """Waiters for records of any table."""
        from harness_pipelines.read.waiting import Waits

        return Waits(self.stores.news, self.stores.tables)

    def init(self) -> list[str]:
        """Create or update the ledger, the catalog rows and the roles; return the applied migrations."""
        from harness_pipelines.ledgers.postgres.migrations import migrate

        return migrate(self.stores.owner_dsn)

    def apply(self, spec: str | Path | TableSpec) -> Table:
        """Create the table that *spec* (a file's path or a `TableSpec`) describes, or apply its changed settings.

        Raises: SpecError, TopicMissing, TableExists if a setting differs that cannot change.
        """
        from harness_pipelines.stages.table.apply import apply_spec

        return Table(self, apply_spec(self.stores, spec))

    def table(self, name: str) -> Table:
        """Return the table ``namespace.name``. Raises: TableUnknown."""
        return Table(self, self.stores.tables.table(name))

    def tables(self) -> list[Table]:
        """Return the tables whose ledger row can be read; `sick_tables` returns the others."""
        return self.survey()[0]

    def sick_tables(self) -> list[SickTable]:
        """Return the tables whose ledger row cannot be read, with the reason; no worker runs them."""
        return self.survey()[1]

    def survey(self, names: Collection[str] | None = None) -> tuple[list[Table], list[SickTable]]:
        """Return `tables` and `sick_tables` by one look at the ledger, of all tables or those of *names* that exist."""
        found, sick = self.stores.tables.survey(names)
        return [Table(self, row) for row in found], sick

    def snapshot(self, name: str, tables: Sequence[str]) -> NamedSnapshot:
        """Name the current state of *tables* as one consistent cut; `read(at=name)` returns it until it is dropped.

        Buffered rows are included. Raises: SnapshotExists, TableUnknown, ValueError.
        """
        return self.stores.snapshots.create(name, [self.table(table).row for table in tables])

    def snapshots(self) -> list[NamedSnapshot]:
        """Return all named snapshots, oldest first."""
        return self.stores.snapshots.all()

    def drop_snapshot(self, name: str) -> None:
        """Drop a snapshot; expire then removes files that only it needed. Raises: SnapshotUnknown, SnapshotInUse."""
        self.stores.snapshots.drop(name)

    def register_spark(self, spark: SparkSession) -> None:
        """Register the source ``harness`` in *spark*: ``spark.readStream.format("harness").option("table",
        ...).load()``.

        A stream has offset vectors as offsets and returns the rows of `Table.stream`. A batch (`spark.read`, or
        ``CREATE TEMP VIEW ... USING harness`` in SQL) returns the rows of `Table.read`, with a new cut in each query.
        Records that are only in Kafka appear once they are ingested. The settings, including the password of the DSN,
        are sent to Spark.
        """
        from harness_pipelines.app.spark_source import OpenTables
        from harness_pipelines.engines.spark.data_source import register

        register(spark, OpenTables(self.settings.for_others()))

    @property
    def states(self) -> States:
        """Positions of consumers that keep their results elsewhere; `read(at="state:NAME")` returns the matching
        cut."""
        return self.stores.states

    def close(self) -> None:
        self.stores.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
