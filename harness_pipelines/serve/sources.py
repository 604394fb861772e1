"""The tables of the catalog as sources of dbt, which reads them through an engine that has attached the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from harness_pipelines.protocol.coordinates import OFFSET, OPERATION, PARTITION, SCHEMA_VERSION, TIMESTAMP

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import TableRow

VERSION = 2  #: of dbt's files of sources
COORDINATES: Mapping[str, tuple[str, str]] = {  #: type and meaning
    PARTITION: ("int", "Partition of the record."),
    OFFSET: ("long", "Offset of the record in its partition."),
    TIMESTAMP: ("timestamptz", "Time of the record; null where it has none."),
    OPERATION: ("string", "What the record does: put."),
    SCHEMA_VERSION: ("int", "Number of the schema that the record was decoded with."),
}
JINJA = ("{{", "{%", "{#")  #: dbt runs what stands between these and their ends, also in a file of sources


def dbt_sources(tables: Iterable[TableRow], *, database: str) -> Mapping[str, Any]:
    """Return what a file of sources holds: a source for each namespace. *database*: the engine's name of the catalog.

    The types are Iceberg's: dbt shows them, and each engine has its own names for them.
    """
    rows = sorted((row for row in tables if is_served(row)), key=lambda row: row.name)
    sources = [
        {
            "name": namespace,
            "database": database,
            "schema": namespace,
            "description": "Tables of a harness, each as fresh as the moment in which it is read.",
            "tables": [_table(row) for row in within],
        }
        for namespace, within in groupby(rows, key=lambda row: row.spec.namespace)
    ]
    return {"version": VERSION, "sources": sources}


def is_served(row: TableRow) -> bool:
    """Whether loads of the table are answered: a keyed one with the stream view alone has no merged state."""
    return not row.spec.key or "batch" in row.views


def left_out(tables: Iterable[TableRow]) -> Sequence[str]:
    """What the file does not say, a line for each table that is not served and each column that dbt would run."""
    return [
        *(
            f"{row.name}: keyed, with the stream view alone, so it is not served"
            for row in tables
            if not is_served(row)
        ),
        *(
            f"{row.name}: column {name!r}: dbt would run what it has in braces"
            for row in tables
            if is_served(row)
            for name, type_ in _columns(row)
            if _has_jinja(name, type_)
        ),
    ]


def _table(row: TableRow) -> dict[str, Any]:
    topic, key = row.spec.topic, row.spec.key
    what = f"Records of the topic {topic}"
    said = {name: text for name, (_, text) in COORDINATES.items()}
    said |= {c.name: c.description for c in row.spec.stored if c.description and not _has_jinja(c.description)}
    columns = [
        {"name": name, **({"description": said[name]} if said.get(name) else {}), "data_type": type_}
        for name, type_ in _columns(row)
        if not _has_jinja(name, type_)
    ]
    plain = [name for name in key if not _has_jinja(name)]
    described = f"{what}, the newest one of each key ({', '.join(plain)})." if key else f"{what}, a row for each."
    if row.spec.description and not _has_jinja(row.spec.description):
        described = f"{row.spec.description}\n\n{described}"
    meta = {"owners": list(row.spec.owners), "tags": dict(row.spec.tags)}
    about = {"meta": {name: value for name, value in meta.items() if value}} if any(meta.values()) else {}
    return {"name": row.spec.name, "description": described, **about, "columns": columns}


def _columns(row: TableRow) -> Sequence[tuple[str, str]]:
    own = [(column.name, str(column.type)) for column in row.spec.stored]
    return [*own, *((name, type_) for name, (type_, _) in COORDINATES.items())]


def _has_jinja(*texts: str) -> bool:
    return any(mark in text for text in texts for mark in JINJA)
