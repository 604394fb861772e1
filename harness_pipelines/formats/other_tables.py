"""Records of other tables in the topic: the filter also covers deletes and records that do not fit.

Several tables may share a topic, and keys of theirs may be equal. The filter of a table tells its records, so it is
asked for more than rows: a delete of which it says false, by the fields of the value or of the record's key, is none
of this table, and a record that does not fit need not if the filter does not take it. A field that is not there is
NULL; where the filter is NULL then, or reads no field that is there, the delete counts: it has a key alone. Where all
fields of a condition are there and it is not true, such as that of a `source` without a table, it counts as false.

The events of Debezium tell their table in `source`. A tombstone has none and follows the event that deletes; so a
filter that reads `source` leaves tombstones out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.formats.base import Codec, Decoded, Reason
from harness_pipelines.formats.choose import Wrapped, value_codec
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.keys import wrapper
from harness_pipelines.formats.raw import RawCodec
from harness_pipelines.formats.refusals import refusal
from harness_pipelines.formats.schema.registry import Schemas, SchemaUnusable
from harness_pipelines.formats.transform import Transformer
from harness_pipelines.formats.whole_record import Records, WholeColumns, fields_of
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import DELETE, PUT
from harness_pipelines.spec.sections.formats import WITH_SCHEMA
from harness_pipelines.spec.sections.transform import SOURCE, input_columns
from harness_pipelines.spec.table import TableSpec

Sources = Callable[[Sequence[bytes | None]], pa.Array]  #: of some values the `source` of each; NULL: it has none


class Others:
    """Leaves out what the filter of one table says is no record of it."""

    def __init__(self, spec: TableSpec, transformer: Transformer, schemas: Schemas, sources: Sources | None) -> None:
        """*spec*: with the transform. *sources*: of change events, where an expression reads `source`."""
        self._transformer, self._sources = transformer, sources
        self._reads = transformer.filter_reads
        self._is_by_source = sources is not None and SOURCE in self._reads
        columns = tuple(replace(c, required=False, default=None) for c in input_columns(spec) if c.name in self._reads)
        asked = spec.model_copy(update={"columns": columns, "transform": None, "key": ()})
        self._whole = WholeColumns(asked)
        self._values: Codec | None = None
        self._keys: Codec | None = None
        if not spec.format.startswith("debezium"):
            self._values = value_codec(asked, fields_of(asked), schemas, all_fields=False)
            if spec.key:
                self._keys = _key_codec(spec, asked, schemas)

    def added(self, decoded: Decoded, records: Records) -> Decoded:
        """*decoded* with what change events have beside their rows, for expressions that read it.

        An event of which nothing tells where it is from is refused: a put may be a row, and where the filter goes by
        `source`, a delete may be of another table.
        """
        if self._sources is None:
            return decoded
        found = self._sources(records.values).take(pa.array(decoded.accepted))
        rows = decoded.rows.append_column(SOURCE, found)
        lacking = found.is_null()
        if not self._is_by_source:
            lacking = pc.and_(lacking, pc.equal(rows.column(OPERATION), PUT).combine_chunks())
        if not pc.any(lacking).as_py():
            return replace(decoded, rows=rows)
        keep = pc.invert(lacking)
        why = Unfit(Reason.MISSING_BLOCK, f"the event has no `source` that is {found.type}, which `transform` reads")
        refused = [refusal(int(i), why) for i in decoded.accepted[lacking.to_numpy(zero_copy_only=False)]]
        return replace(
            decoded,
            rows=rows.filter(keep).combine_chunks(),
            accepted=decoded.accepted[keep.to_numpy(zero_copy_only=False)],
            refused=sorted([*decoded.refused, *refused], key=lambda one: one.index),
        )

    def left_out(self, decoded: Decoded, records: Records) -> Decoded:
        """*decoded*, as the codecs made it, without the deletes and the misfits of others; they count as filtered."""
        refused = np.array([one.index for one in decoded.refused], np.int64)
        deletes = np.empty(0, np.int64)
        if OPERATION in decoded.rows.column_names:
            is_delete = pc.equal(decoded.rows.column(OPERATION), DELETE).to_numpy().astype(np.bool_)
            deletes = decoded.accepted[is_delete]
        asked = np.concatenate([deletes, refused])
        if not self._reads or not len(asked):
            return decoded
        out = self._of_others(records, asked.tolist())
        if not out:
            return decoded
        stay = ~np.isin(decoded.accepted, list(out))
        return replace(
            decoded,
            rows=decoded.rows.filter(pa.array(stay)).combine_chunks(),
            accepted=decoded.accepted[stay],
            refused=[one for one in decoded.refused if one.index not in out],
            filtered=decoded.filtered + len(out),
        )

    def _of_others(self, records: Records, places: Sequence[int]) -> set[int]:
        """Return those of *places* whose records belong to other tables."""
        with_value = [i for i in places if records.values[i] is not None]
        without = [i for i in places if records.values[i] is None]
        found: set[int] = set()
        if self._is_by_source:
            found |= set(without)
        elif self._keys is not None and without:
            found |= self._false(self._keys.decode([records.keys[i] for i in without]), without)
        if self._sources is not None and with_value:
            told = self._sources([records.values[i] for i in with_value])
            rows = pa.table({SOURCE: told})
            found |= self._false(Decoded(rows=rows, accepted=np.arange(len(told)), refused=[]), with_value)
        elif self._values is not None and with_value:
            chosen = records.at(with_value)
            decoded = self._values.decode(chosen.values)
            if self._whole:
                decoded = self._whole.added(decoded, chosen)
            found |= self._false(decoded, with_value)
        return found

    def _false(self, decoded: Decoded, places: Sequence[int]) -> set[int]:
        """Those of *places* of which the filter says false by fields that are there; *decoded*: of them."""
        there = [name for name in self._reads if name in decoded.rows.column_names]
        rows = decoded.rows.select(there)
        verdicts = self._transformer.verdicts(rows, len(decoded.accepted))
        unmet = self._transformer.unmet(rows)
        cells = [rows.column(name).is_valid().to_pylist() for name in there]
        return {
            places[at]
            for row, at in enumerate(decoded.accepted.tolist())
            if (unmet[row] if there else False) or (verdicts[row] is False and any(column[row] for column in cells))
        }


def _key_codec(spec: TableSpec, asked: TableSpec, schemas: Schemas) -> Codec | None:
    """Return the decoder of the filter's fields in record keys; None: the keys do not have them."""
    fields = fields_of(asked)
    columns = spec.model_copy(update={"columns": input_columns(spec), "transform": None})
    if spec.key_format == "raw":
        named = [c for c in asked.columns if c.name in spec.key]
        return RawCodec(named[0]) if named else None
    if spec.key_format in WITH_SCHEMA:
        from harness_pipelines.formats.schema.codec import codec_with_schema

        try:
            return codec_with_schema(spec.key_format, fields, spec.key_schema, schemas=schemas, wrap=wrapper(columns))
        except SchemaUnusable:  # it does not give the fields
            return None
    return Wrapped(wrapper(columns), JsonCodec(fields)) if fields else None
