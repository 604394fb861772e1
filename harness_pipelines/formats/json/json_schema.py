"""JSON with a schema: like plain JSON, for values that the schema allows. jsonschema-rs validates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from harness_pipelines.extras import needs
from harness_pipelines.formats.base import Codec, Decoded, Reason, Refused
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.refusals import DETAIL_CHARS, refusal
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.formats.schema.writer_schema import NoFit

with needs("formats", "A format with a schema"):
    import jsonschema_rs

_any_json = msgspec.json.Decoder().decode


class JsonSchemaCodec:
    """`Codec` that refuses what its schema does not allow (``schema_violation``), after what *codec* refuses.

    Nothing is fetched: a ``$ref`` leads into the schema, or to a reference by its name.
    """

    def __init__(self, schema: WrittenSchema, codec: Codec) -> None:
        """Raises: NoFit (unusable_schema)."""
        self._codec = codec
        try:
            others = [(name, msgspec.json.decode(text)) for name, text in schema.references.items()]
            registry = jsonschema_rs.Registry(others) if others else None
            found: Any = msgspec.json.decode(schema.text)
            self._validator = jsonschema_rs.validator_for(found, registry=registry, retriever=_nothing)
        except (ValueError, TypeError, msgspec.DecodeError, jsonschema_rs.ReferencingError) as error:
            why = " ".join(str(error).split())[:DETAIL_CHARS]
            raise NoFit(f"no JSON Schema that can be used: {why}", reason=Reason.UNUSABLE_SCHEMA) from error

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        decoded = self._codec.decode(values)
        wrong = [one for i in decoded.accepted.tolist() if (one := self._violation(i, values[i]))]
        if not wrong:
            return decoded
        refused = {one.index for one in wrong}
        keep = np.array([i not in refused for i in decoded.accepted.tolist()], np.bool_)
        return Decoded(
            rows=decoded.rows.filter(pa.array(keep)),
            accepted=decoded.accepted[keep],
            refused=sorted([*decoded.refused, *wrong], key=lambda one: one.index),
        )

    def _violation(self, index: int, value: bytes | None) -> Refused | None:
        assert value is not None, "the codec refuses what is missing"
        try:
            found = _any_json(value)
            if self._validator.is_valid(found):
                return None
            error = next(iter(self._validator.iter_errors(found)))
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as wrong:
            # A number beyond 64 bits, or a pattern that takes too long: it is unknown whether the schema allows it.
            why = " ".join(str(wrong).split()) or type(wrong).__name__
            return refusal(index, Unfit(Reason.SCHEMA_VIOLATION, f"the schema cannot be asked: {why}"))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        where = f"`{path.removeprefix('.')}`: " if path else ""
        return refusal(index, Unfit(Reason.SCHEMA_VIOLATION, where + " ".join(error.message.split())))


def _nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is no reference of the schema, and nothing is fetched")
