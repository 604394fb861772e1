"""What the files of a cut have in common: the columns with their ids, and the ways in which they are partitioned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.write.file_shape import FileShape
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.serving.cuts import CutImpossible

_SHAPE_BYTES = 64 * 2**10  #: about what one takes
#: Added to the table's number of a schema: manifests of the views name schemas by low ids, which a cut's is not.
SCHEMA_IDS = 1_000_000
FIRST_PARTITION_ID = 999  #: Iceberg's last one of a table that is not partitioned


@dataclass(frozen=True, kw_only=True)
class CutShape(FileShape):
    """Columns and partitionings of the cuts over one view, and perhaps a second one.

    Its schema is that of the base view, without the column of the sample layer; its properties are that view's.
    """

    specs: tuple[PartitionSpec, ...]  #: those of the base view under their own ids, then others
    moved: Mapping[int, int]  #: by the id of a partitioning in the second view its id here
    plain: PartitionSpec  #: of the chunks, which are not partitioned, and of the table as engines see it
    last_column_id: int

    def spec(self, spec_id: int) -> PartitionSpec:
        return next(spec for spec in self.specs if spec.spec_id == spec_id)

    @cached_property
    def schema_form(self) -> dict[str, Any]:
        """Iceberg's JSON form of the schema."""
        form: dict[str, Any] = self.schema.model_dump(mode="json", by_alias=True)
        return form

    @cached_property
    def schema_json(self) -> bytes:
        return orjson.dumps(self.schema_form)

    @cached_property
    def spec_forms(self) -> list[dict[str, Any]]:
        """Iceberg's JSON form of the partitionings."""
        return [spec.model_dump(mode="json", by_alias=True) for spec in self.specs]

    def spec_fields_json(self, spec: PartitionSpec) -> bytes:
        return orjson.dumps(next(one["fields"] for one in self.spec_forms if one["spec-id"] == spec.spec_id))

    @property
    def last_partition_id(self) -> int:
        return max(spec.last_assigned_field_id for spec in self.specs) if self.specs else FIRST_PARTITION_ID


def shape_of(
    base: TableMetadata, other: TableMetadata | None, *, names: tuple[str, str | None], schema_version: int
) -> CutShape:
    """The shape of cuts over the view *base*, and rows of *other*; *names* are the locations of their metadata.

    Raises: CutImpossible where a column has two ids: a reader would find it in the files of one view alone.
    """
    key = "\n".join([str(schema_version), *filter(None, names)])

    def make() -> CutShape:
        return _made(base, other, names, _served(base.schema(), schema_version))

    return KEPT.get(key, make, kind="cut", weigh=lambda _: _SHAPE_BYTES)


def _made(base: TableMetadata, other: TableMetadata | None, names: tuple[str, str | None], schema: Schema) -> CutShape:
    specs = list(base.partition_specs)
    moved: dict[int, int] = {}
    if other is not None:
        _check_same(schema, other.schema(), names)
        for spec in other.partition_specs:
            moved[spec.spec_id] = _id_in(specs, spec)
    plain = _id_in(specs, PartitionSpec())
    return CutShape(
        schema=schema,
        specs=tuple(specs),
        moved=moved,
        plain=next(spec for spec in specs if spec.spec_id == plain),
        last_column_id=max(base.last_column_id, 0 if other is None else other.last_column_id),
        properties=base.properties,
    )


def _served(schema: Schema, schema_version: int) -> Schema:
    """*schema* without the column of the sample layer, under an id that no schema of a view has."""
    ids = schema.identifier_field_ids
    return Schema(*_columns(schema), schema_id=SCHEMA_IDS + schema_version, identifier_field_ids=ids)


def _columns(schema: Schema) -> list[NestedField]:
    return [field for field in schema.fields if field.name != LAYER.name]


def _check_same(base: Schema, other: Schema, names: tuple[str, str | None]) -> None:
    first, second = ({field.field_id: field for field in _columns(schema)} for schema in (base, other))
    if first != second:
        one = next(i for i in sorted({*first, *second}) if first.get(i) != second.get(i))
        raise CutImpossible(
            f"{names[0]} and {names[1]} have other columns: of the id {one} are {_said(first.get(one))} and "
            f"{_said(second.get(one))}. A reader would miss the rows or values of one of them; nothing was written"
        )


def _said(field: object) -> str:
    return "none" if field is None else f"`{field}`"


def _id_in(specs: list[PartitionSpec], spec: PartitionSpec) -> int:
    """The id of a partitioning like *spec* among *specs*, which it joins if it is new."""
    same = next((known for known in specs if known.fields == spec.fields), None)
    if same is None:
        same = PartitionSpec(*spec.fields, spec_id=max((known.spec_id for known in specs), default=-1) + 1)
        specs.append(same)
    return same.spec_id
