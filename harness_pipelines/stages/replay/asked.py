"""The selection of quarantined records for a replay, a drop or a list.

It is checked against the table's spec alone, so that a command that only lists loads no reader of the lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.base import Reason
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.spec.sections.formats import names_schema

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec


def check_wanted(table: TableRow, wanted: Wanted) -> None:
    """Raises: UsageError."""
    if wanted.offset is not None and wanted.partition is None:
        raise UsageError("an offset is one of a partition: name that too")
    if unknown := set(wanted.reasons) - set(Reason):
        raise UsageError(f"no record is refused for {', '.join(sorted(unknown))}; the reasons are {', '.join(Reason)}")
    if wanted.schema_id is not None and not names_schema(table.spec):
        raise UsageError(
            f"values of {table.name} do not begin with the id of a schema (format {table.spec.format}); only records "
            "of a schema registry do"
        )


def fitting(table: TableRow, decoder: TableSpec) -> TableSpec:
    """The table's spec with the words of *decoder* about how values are written. Raises: UsageError."""
    types = {c.name: (c.type, c.required) for c in table.spec.columns}
    other = {c.name: (c.type, c.required) for c in decoder.columns}
    if types != other:
        differing = sorted(name for name in types.keys() | other.keys() if types.get(name) != other.get(name))
        raise UsageError(
            f"the decoder's columns are not those of {table.name}: {', '.join(differing)}. A decoder may say otherwise "
            "how values are written (`from`, `format`, `unknown_fields`, `contract`), not what they are"
        )
    if decoder.key != table.spec.key:
        keys = [", ".join(spec.key) or "none" for spec in (decoder, table.spec)]
        raise UsageError(f"the decoder's key ({keys[0]}) is not that of {table.name} ({keys[1]})")
    columns = {c.name: c for c in decoder.columns}
    return decoder.model_copy(update={"columns": tuple(columns[c.name] for c in table.spec.columns)})
