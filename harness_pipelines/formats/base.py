"""The interface of all codecs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


Headers = Sequence[tuple[str, bytes | None]]  #: of one record, in its order
NO_TEXT = "\ufffd"  #: stands in a header's name for what is not UTF-8
UNREADABLE_HEADERS: Headers = ((NO_TEXT, None),)  #: of a record with such a name: the client gives none of them


#: What is done with a record whose schema changes the table first (`evolution: compatible`): take the columns that
#: there are, raise `SchemaDue`, or refuse it.
Due = Literal["take", "raise", "refuse"]


class Reason(StrEnum):
    """Why a record is not a row."""

    NULL_VALUE = "null_value"
    MALFORMED = "malformed"
    WRONG_TYPE = "wrong_type"
    OUT_OF_RANGE = "out_of_range"
    MISSING_FIELD = "missing_field"
    UNKNOWN_FIELD = "unknown_field"
    TOO_LARGE = "too_large"
    MISSING_KEY = "missing_key"
    MISSING_BLOCK = "missing_block"
    UNSUPPORTED_OP = "unsupported_op"
    UNAVAILABLE_VALUE = "unavailable_value"
    TRANSFORM = "transform"
    FILTERED = "filtered"  #: it was a row, and a replay found that the filter now leaves it out
    CONTRACT = "contract"
    TRUNCATED_HEADER = "truncated_header"
    WRONG_MAGIC_BYTE = "wrong_magic_byte"
    UNKNOWN_SCHEMA = "unknown_schema"
    UNUSABLE_SCHEMA = "unusable_schema"
    SCHEMA_VIOLATION = "schema_violation"
    SCHEMA_NOT_TAKEN = "schema_not_taken"  #: by `evolution` of the spec
    UNDECODABLE = "undecodable"  #: it raises what no codec expects


#: What is not decided by the record and the spec alone: a registry may have the schema later, and an exception may be
#: that of a moment. When the record is decoded again it may be a row.
UNSETTLED = frozenset({Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One record that does not fit."""

    index: int  #: position in the input
    reason: Reason
    detail: str  #: names the field and what was found, never more than a line
    check: str | None = None  #: of the contract, that it breaks
    stops: bool = False  #: the contract says that the table stops at such a record


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """Rows of the accepted records and the refused ones; with those that are filtered they are all of the input."""

    rows: pa.Table  #: the columns in spec order, one row per accepted record
    accepted: NDArray[np.int64]  #: shape (rows,), ascending positions in the input
    refused: list[Refused]
    filtered: int = 0  #: records that fit, and that the transform's filter does not take
    warned: Mapping[str, int] = field(default_factory=dict)  #: check of the contract -> rows taken that break it


def header_name(name: str) -> str:
    """A header's name as every client has it: those in C end it at its first U+0000."""
    return name.partition("\0")[0]


class Codec(Protocol):
    """Decodes batches. A record's verdict never depends on the records beside it."""

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode the values of some records."""
        ...
