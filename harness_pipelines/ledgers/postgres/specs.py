"""The spec of a table in the ledger: a writer changes the spec that it read, under the table's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection, sql
from harness_pipelines.ledgers.postgres import parameters
from harness_pipelines.ledgers.postgres.acts.drop import TableInUse
from harness_pipelines.ledgers.postgres.notify import announce
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.schema.schemas import SpecMoved, check_columns, check_spec
from harness_pipelines.spec.load import dump_spec, read_back
from harness_pipelines.spec.table import TableSpec


def write(
    connection: Connection,
    table: TableRow,
    spec: TableSpec,
    *,
    what: str,
    fields: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Replace the spec that *table* was read with by *spec*; the caller has locked the table's row.

    *fields* are those of a schema that the caller inserts; else the columns stay those of the schema in force.
    Raises: SpecMoved, SpecDisagrees.
    """
    key = {"table_id": table.table_id}
    now = connection.execute(sql("ledger/spec_now"), key).fetchone()
    assert now is not None, "the table is locked"
    check_spec(table.name, read=table.spec, found=read_back(now["spec"], source=table.name), what=what)
    version: int = now["schema_version"]
    check_columns(spec, fields=fields or now["fields"], schema_version=version if fields is None else version + 1)
    connection.execute(sql("ledger/update_spec"), {**key, "spec": Jsonb(dump_spec(spec))})
    announce(connection)


def check_unread(connection: Connection, table: TableRow) -> None:
    """Raises: TableInUse, while a worker reads the log; SpecMoved, when a record has become a row."""
    key = {"table_id": table.table_id}
    for claim in connection.execute(sql("ledger/reading_claims"), key):
        if claim["alive"]:
            raise TableInUse(
                f"{table.name}: how records are decoded was to be changed, and {claim['holder']} holds "
                f"{claim['stage']}; nothing was changed. Stop the worker, and apply the spec again"
            )
    found = connection.execute(sql("buffer/beginning"), {**key, "limit": 1}).fetchone()
    if found is None or found["taken"]:
        raise SpecMoved(f"{table.name}: a record became a row meanwhile; nothing was changed. Apply the spec again")


def with_columns_of_schema(table: TableRow) -> TableSpec:
    """The spec of *table* with the columns that were published with its schema; settings stay."""
    words, published = dump_spec(table.spec), table.history[-1].spec
    if (clustered := published.get("layout", {}).get("columns")) is not None:
        words["layout"] = {**words.get("layout", {}), "columns": clustered}
    return TableSpec.model_validate({**words, "columns": published["columns"]})


def in_force(connection: Connection, table: TableRow) -> TableRow:
    """*table* as the ledger has it now; one that was dropped as it was, which holds no claim. Raises: TableDamaged."""
    key = parameters.of_names([table.name])
    found = [rows.table_row(row) for row in connection.execute(sql("ledger/tables"), key)]
    return next((now for now in found if now.table_id == table.table_id), table)
