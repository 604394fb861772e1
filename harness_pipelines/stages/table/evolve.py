"""Evolve: change the columns of a table in every tier with one commit, on request or by a registry schema.

plan: what would be changed, checked against spec and ledger. expand: metadata of the views with the new schema is
written, unseen by readers. publish: one transaction of the ledger (`SchemaChanges`). contract: segments
of the old shape retire once unneeded, as all segments do; files keep their columns, which are
read by field id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.policy import SchemaDue
from harness_pipelines.ports.access import HasEvolutions, HasGuard, HasLakeSchemas, HasLedger, HasSchemas
from harness_pipelines.ports.ledger import TableStopped
from harness_pipelines.protocol.schema.evolution import ColumnChanges, Evolved, check_none_recalled, evolved
from harness_pipelines.protocol.schema.schemas import SpecMoved, check_schema
from harness_pipelines.protocol.versions import Version, ViewName

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import Swap, TableRow

log = structlog.get_logger(__name__)
PLANS_MAX = 4  #: plans of one change, where settings are applied beside it each time


class Ports(HasEvolutions, HasLakeSchemas, HasLedger, HasSchemas, HasGuard, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvePlan:
    """The plan of a change."""

    table: str
    schema_version: int  #: that the table would have
    changes: tuple[str, ...]
    columns: tuple[Mapping[str, Any], ...]  #: afterwards, in Iceberg's JSON form

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "schema_version": self.schema_version,
            "changes": list(self.changes),
            "columns": [dict(one) for one in self.columns],
        }


def plan(stores: Ports, table: TableRow, changes: ColumnChanges) -> tuple[EvolvePlan, Evolved]:
    """Check *changes*; nothing is written. Raises: EvolutionRefused, ContractUnusable, SchemaUnusable."""
    found = evolved(table.spec, table.fields, changes, next_id=stores.lake_schemas.next_field_id(table))
    if found.narrows:
        check_none_recalled(table.name, stores.ledger.head(table).overlays)
    RecordCodec(found.spec, stores.schemas)  # what records cannot be decoded with is no schema
    told = EvolvePlan(
        table=table.name,
        schema_version=table.schema_version + 1,
        changes=found.told,
        columns=found.fields,
    )
    return told, found


def evolve(stores: Ports, table: TableRow, changes: ColumnChanges) -> Version:
    """Publish *changes*: from the version that is returned on, the table has the new columns in all tiers.

    Raises: EvolutionRefused, TableStopped, SchemaMoved (another change came first), SpecMoved (settings are applied
    over and over), ForeignCommit, LakeAway, WarehouseTaken, PostgresUnreachable, OutcomeUnknown.
    """
    by = f"{getuser()}@{gethostname()}"
    for _ in range(PLANS_MAX):
        if table.stopped:
            raise TableStopped(f"{table.name} is stopped: {table.stopped}; nothing was changed")
        try:
            return _publish(stores, table, changes, by=by)
        except SpecMoved as moved:
            log.info("evolve.planned_again", table=table.name, detail=str(moved))
        planned, table = table.schema_version, stores.ledger.table(table.name)
        check_schema(table.name, planned=planned, found=table.schema_version, what="a change was planned")
    return _publish(stores, table, changes, by=by)


def follow(stores: Ports, table: TableRow, due: SchemaDue) -> None:
    """Publish the changes that the schema of a record asks for; *table* is what the record was decoded for.

    Ingest alone calls it, and as ingest does it continues while another stage has stopped the table. When the table was
    changed since, or its policy, nothing is done: decode again. Raises: as `evolve`, SchemaMoved and SpecMoved too.
    """
    now = stores.ledger.table(table.name)
    if now.schema_version != table.schema_version or now.spec.evolution != "compatible":
        return
    schema_id = due.named.schema_id
    _publish(stores, now, due.changes, by=f"schema {schema_id} of the registry", schema_id=schema_id)


def _publish(
    stores: Ports, table: TableRow, changes: ColumnChanges, *, by: str, schema_id: int | None = None
) -> Version:
    stores.guard.check(table, stores.ledger)
    told, found = plan(stores, table, changes)

    def build(pointers: Mapping[ViewName, str], move_id: int) -> Mapping[ViewName, Swap]:
        return {
            view: stores.lake_schemas.build(table, found, move_id=move_id, view=view, base=base)
            for view, base in pointers.items()
        }

    published = stores.evolutions(table).publish(replace(found, schema_id=schema_id), build, by=by)
    log.info("evolve.published", by=by, version=published.version, **told.to_json())
    return published
