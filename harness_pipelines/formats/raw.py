"""Raw bytes: one column with the complete value or key of a record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from harness_pipelines.formats.base import Decoded, Reason, Refused
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.refusals import VALUE_BYTES_MAX, refusal
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive


class RawCodec:
    """`Codec` of one column of type binary or string; no bytes are NULL, empty ones are not.

    Text is UTF-8 without U+0000, which the buffer cannot store.
    """

    def __init__(self, column: Column, *, missing: Reason = Reason.MISSING_FIELD) -> None:
        """*missing*: why no bytes are refused where the column is required."""
        self._column, self._missing = column, missing
        self._schema = arrow_schema([column])
        self._is_text = column.type == Primitive("string")

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        refused = self._unsound(values)
        accepted = np.array([i for i in range(len(values)) if i not in refused], np.int64)
        left = [values[i] for i in accepted.tolist()] if refused else list(values)
        return Decoded(
            rows=pa.table([pa.array(left, self._schema.types[0])], schema=self._schema),
            accepted=accepted,
            refused=[refusal(i, why) for i, why in sorted(refused.items())],
        )

    def _unsound(self, values: Sequence[bytes | None]) -> dict[int, Unfit]:
        return {i: why for i, value in enumerate(values) if (why := self._trouble(value))}

    def _trouble(self, value: bytes | None) -> Unfit | None:
        name = self._column.name
        if value is None:
            return Unfit(self._missing, f"`{name}`: required, but null") if self._column.required else None
        if len(value) > VALUE_BYTES_MAX:
            return Unfit(
                Reason.TOO_LARGE, f"`{name}`: there are {len(value):,} bytes; at most {VALUE_BYTES_MAX:,} are kept"
            )
        if not self._is_text:
            return None
        try:
            value.decode()
        except UnicodeDecodeError as error:
            return Unfit(Reason.WRONG_TYPE, f"`{name}`: not UTF-8 at byte {error.start}; take it as binary")
        if b"\x00" in value:
            return Unfit(Reason.OUT_OF_RANGE, f"`{name}`: the text holds U+0000, which the buffer cannot store")
        return None


class NoColumns:
    """`Codec` of values that no column is taken from: each is a row without columns."""

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        refused: list[Refused] = []
        return Decoded(rows=pa.table({}), accepted=np.arange(len(values), dtype=np.int64), refused=refused)
