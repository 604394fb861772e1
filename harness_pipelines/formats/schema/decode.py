"""Decoding values with the writer's schema: the common part of Avro and Protobuf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.columns.chunked import ColumnCodec, Maker, checked, finished, stored
from harness_pipelines.formats.columns.shapes import ABSENT, Cells, Convert, Misfits, Unfit
from harness_pipelines.formats.refusals import VALUE_BYTES_MAX, refusal
from harness_pipelines.formats.schema.writer_schema import (
    NoFit,
    WriterType,
    WrittenField,
    absent,
    convert_of,
    first_there,
    found_by,
    refuse_unknown,
)
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column


class Reader(Protocol):
    """Reads bytes that were written with one schema."""

    @property
    def written(self) -> WriterType:
        """What the schema says of them."""
        ...

    def read(self, payloads: Sequence[bytes]) -> tuple[list[Any], dict[int, Unfit]]:
        """The records of *payloads*, and by position why the others cannot be read.

        A record's verdict never depends on the records beside it.
        """
        ...


class SchemaCodec(ColumnCodec):
    """`Codec` of the values of one schema, projected to columns by their names."""

    def __init__(
        self, columns: Sequence[Column], reader: Reader, *, unknown_fields: Literal["ignore", "quarantine"] = "ignore"
    ) -> None:
        """Raises: NoFit when the schema does not give a column."""
        self._reader = reader
        super().__init__(arrow_schema(columns), _makers(columns, reader.written, strict=unknown_fields == "quarantine"))

    def _unsound(self, values: Sequence[bytes | None]) -> dict[int, Unfit]:
        if None not in values and max(map(len, values), default=0) <= VALUE_BYTES_MAX:  # type: ignore[arg-type]
            return {}
        return {i: why for i, value in enumerate(values) if (why := _trouble(value))}

    def _records(self, values: Sequence[bytes | None], refused: dict[int, Unfit]) -> list[Any]:
        if not refused:
            records, wrong = self._reader.read(values)  # type: ignore[arg-type]  # None is refused
            refused |= wrong
            return records
        places = [i for i in range(len(values)) if i not in refused]
        records, wrong = self._reader.read([values[i] for i in places])  # type: ignore[misc]  # None is refused
        refused |= {places[position]: why for position, why in wrong.items()}
        return records


class RecordsCodec(ColumnCodec):
    """Like a `Codec`, of records that a reader has read, or of a part of each."""

    def __init__(
        self,
        columns: Sequence[Column],
        written: WriterType,
        *,
        unknown_fields: Literal["ignore", "quarantine"] = "ignore",
    ) -> None:
        """Raises: NoFit when what is *written* does not give a column."""
        super().__init__(arrow_schema(columns), _makers(columns, written, strict=unknown_fields == "quarantine"))

    def _unsound(self, values: Sequence[Any]) -> dict[int, Unfit]:
        return {}

    def _records(self, values: Sequence[Any], refused: dict[int, Unfit]) -> list[Any]:
        return list(values)


def _trouble(value: bytes | None) -> Unfit | None:
    if value is None:
        return Unfit(Reason.NULL_VALUE, "the record has no value")
    if len(value) > VALUE_BYTES_MAX:
        return Unfit(Reason.TOO_LARGE, f"the value has {len(value):,} bytes; at most {VALUE_BYTES_MAX:,} are decoded")
    return None


def _makers(columns: Sequence[Column], written: WriterType, *, strict: bool) -> list[Maker]:
    if written.kind == "none":
        raise NoFit(written.trouble, reason=Reason.UNUSABLE_SCHEMA)
    makers, taken = [], set()
    for column in columns:
        try:
            fields = found_by(written.fields, column.names)
            if not fields:
                makers.append(_without_field(column))
                continue
            taken |= {*column.aliases, *(field.name for field in fields)}
            makers.append(_maker(column, fields, strict=strict))
        except NoFit as why:
            raise why.below(column.name) from None
    if strict:
        refuse_unknown(written, taken)
    return makers


def _without_field(column: Column) -> Maker:
    kind = arrow_schema([column]).types[0]
    if column.default is None:
        return Maker(column.name, lambda _: None, absent(kind, required=column.required))
    return Maker(column.name, lambda _: ABSENT, finished(column, absent(kind, required=False)))


def _getter(column: Column, field: WrittenField) -> Callable[[Any], Any]:
    """The cell of a record. A field without presence, as Protobuf has them, is never missing: it is 0 or empty."""
    get = field.get
    if column.default is None or field.has is None:
        return get
    return lambda record: ABSENT if (cell := get(record)) is None else cell


def _maker(column: Column, fields: Sequence[WrittenField], *, strict: bool) -> Maker:
    """Raises: NoFit when none of *fields* gives the column."""
    converts: list[Convert] = []
    troubles: list[NoFit] = []
    for field in fields:
        try:
            converts.append(
                convert_of(field.written, column.type, column.source, strict_fields=strict, exact=column.exact)
            )
        except NoFit as why:
            troubles.append(why)
            converts.append(_refusing(why))
    if len(troubles) == len(fields):
        raise troubles[0]
    if len(fields) == 1:
        return Maker(column.name, _getter(column, fields[0]), finished(column, converts[0]))
    getters = [_getter(column, field) for field in fields]

    def get(record: Any) -> tuple[int, Any]:
        at = first_there(fields, record)
        return at, getters[at](record)

    kind = arrow_schema([column]).types[0]
    return Maker(column.name, get, checked(column, _each_by_its_own([stored(column, c) for c in converts], kind)))


def _refusing(why: NoFit) -> Convert:
    """A column of a field that does not give it: only the records that have no other are refused."""

    def convert(cells: Cells) -> pa.Array:
        raise Misfits(dict.fromkeys(range(len(cells)), Unfit(why.reason, why.why, why.path)))

    return convert


def _each_by_its_own(converts: Sequence[Convert], kind: pa.DataType) -> Convert:
    """Return a column of cells, each converted by the one of *converts* that it names."""

    def convert(cells: Cells) -> pa.Array:
        arrays, order, wrong = [pa.nulls(0, kind)], list[int](), dict[int, Unfit]()
        for which, one in enumerate(converts):
            places = [i for i, (at, _) in enumerate(cells) if at == which]
            if not places:
                continue
            order += places
            try:
                arrays.append(one([cells[i][1] for i in places]))
            except Misfits as misfits:
                wrong |= {places[position]: why for position, why in misfits.found.items()}
        if wrong:
            raise Misfits(wrong)
        return pa.concat_arrays(arrays).take(pa.array(np.argsort(np.array(order, np.int64))))

    return convert


class Refusing:
    """`Codec` of records that are all refused for one reason."""

    def __init__(self, columns: Sequence[Column], why: Unfit) -> None:
        self._schema, self._why = arrow_schema(columns), why

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        return Decoded(
            rows=self._schema.empty_table(),
            accepted=np.empty(0, np.int64),
            refused=[refusal(i, self._why) for i in range(len(values))],
        )


def unfit(why: NoFit, schema: str) -> Unfit:
    """*why* records of *schema* (its name, for people) are refused."""
    path = why.path.removeprefix(".")
    return Unfit(why.reason, f"{f'`{path}`: ' if path else ''}{why.why} ({schema})")
