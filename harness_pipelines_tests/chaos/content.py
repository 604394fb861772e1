"""What the producer writes: every record follows from its number, so a reader can tell whether it was altered."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

PARTITIONS = 3
COLUMNS: dict[str, Any] = {"id": {"type": "long", "required": True}, "n": "int", "s": "string"}
COORDINATES = ("_kafka_partition", "_kafka_offset")
READ = ("id", "n", "s", *COORDINATES)
_MODULUS = 1_000
_MISFIT_EVERY = 97


def is_misfit(number: int) -> bool:
    """Whether this record must end in quarantine."""
    return number % _MISFIT_EVERY == _MISFIT_EVERY - 1


def value(number: int) -> bytes:
    """The bytes of record *number*."""
    if is_misfit(number):
        return b'{"id":"not a number","n":%d}' % number
    return b'{"id":%d,"n":%d,"s":"row %d"}' % (number, number % _MODULUS, number)


def altered(rows: pa.Table) -> int:
    """How many of *rows* (columns id, n, s) do not belong together."""
    ids = rows.column("id")
    remainder = pc.subtract(ids, pc.multiply(pc.divide(ids, _MODULUS), _MODULUS))
    text = pc.binary_join_element_wise(pa.scalar("row"), pc.cast(ids, pa.string()), pa.scalar(" "))
    fits = pc.and_(pc.equal(pc.cast(rows.column("n"), pa.int64()), remainder), pc.equal(rows.column("s"), text))
    fitting: int = pc.sum(pc.fill_null(fits, False), min_count=0).as_py()
    return int(rows.num_rows - fitting)
